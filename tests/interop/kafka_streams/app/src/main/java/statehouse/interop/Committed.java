package statehouse.interop;

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.KafkaStreams;

/** Waits until an application has committed the end of topics: their effects are in the changelogs then. */
final class Committed {
    private static final Duration DEADLINE = Duration.ofMinutes(10);
    private static final long PAUSE_MS = 50;

    private final Admin admin;
    private final KafkaStreams streams;
    private final String applicationId;
    private final long deadline = System.nanoTime() + DEADLINE.toNanos();

    Committed(final Admin admin, final KafkaStreams streams, final String applicationId) {
        this.admin = admin;
        this.streams = streams;
        this.applicationId = applicationId;
    }

    /** Topics that feed one another are waited for one after the other, the first one first. */
    void await(final List<String> topics) throws Exception {
        while (!isCommitted(topics)) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("not processed in " + DEADLINE + ": " + topics);
            }
            if (streams.state() == KafkaStreams.State.ERROR) {
                throw new IllegalStateException("Kafka Streams has failed; its log says why");
            }
            Thread.sleep(PAUSE_MS);
        }
    }

    private boolean isCommitted(final List<String> topics) throws Exception {
        if (streams.state() != KafkaStreams.State.RUNNING) {
            return false;
        }
        final Map<TopicPartition, OffsetSpec> wanted = new HashMap<>();
        for (final TopicDescription topic :
                admin.describeTopics(topics).allTopicNames().get(30, TimeUnit.SECONDS).values()) {
            topic.partitions()
                    .forEach(each -> wanted.put(new TopicPartition(topic.name(), each.partition()), OffsetSpec.latest()));
        }
        final Map<TopicPartition, OffsetAndMetadata> committed = admin.listConsumerGroupOffsets(applicationId)
                .partitionsToOffsetAndMetadata()
                .get(30, TimeUnit.SECONDS);
        return admin.listOffsets(wanted).all().get(30, TimeUnit.SECONDS).entrySet().stream().allMatch(end -> {
            final OffsetAndMetadata at = committed.get(end.getKey());
            return end.getValue().offset() <= (at == null ? 0 : at.offset());
        });
    }
}
