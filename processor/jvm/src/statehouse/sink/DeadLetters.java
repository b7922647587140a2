package statehouse.sink;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * The dead letters of a task's rows, as statehouse/contract/dead_letters.py describes them.
 *
 * <p>A query's row need not have the record's bytes any more, and never has its headers. So the records are read again,
 * by their offsets, before the batch's transactions begin. That costs nothing while no record is refused.
 */
final class DeadLetters {
    private static final long SILENCE_NS = Duration.ofSeconds(5).toNanos();
    private static final Duration LOOK = Duration.ofMillis(200);

    /** What is read over rather than asked for anew. */
    private static final long GAP = 500;

    /** Where a source record is. */
    record Source(String topic, int partition, long offset) {}

    private final Target target;
    private Map<Source, ConsumerRecord<byte[], byte[]>> records = new HashMap<>();

    /** How many source records couldn't be read. */
    int unread;

    DeadLetters(Target target) {
        this.target = target;
    }

    /**
     * Returns the refused rows that make dead letters: of each source record the first, and all that come from none.
     *
     * <p>Spark makes a row for each sliding window of a record, and a query's outputs may refuse the same record. All
     * refused rows of a record are in one sink partition, so none is written twice.
     */
    static List<Record> firstOfEach(Collection<Record> refused) {
        Set<Source> seen = new HashSet<>();
        List<Record> first = new ArrayList<>();
        for (Record row : refused) {
            Source source = sourceOf(row);
            if (source == null || seen.add(source)) {
                first.add(row);
            }
        }
        return first;
    }

    /** Where a row's record is; null if it comes from no single one, as an aggregate's. */
    static Source sourceOf(Record row) {
        boolean isKnown = row.topic != null && row.partition >= 0 && row.offset != Record.NO_OFFSET;
        return isKnown ? new Source(row.topic, row.partition, row.offset) : null;
    }

    /** Reads the source records, without those that can't be read: deleted meanwhile, or in no time. */
    void readSources(Collection<Record> refused) {
        Set<Source> wanted = new HashSet<>();
        for (Record row : refused) {
            Source source = sourceOf(row);
            if (source != null) {
                wanted.add(source);
            }
        }
        if (!wanted.isEmpty()) {
            records = read(wanted);
            unread = wanted.size() - records.size();
        }
    }

    /** The record of a dead letter. */
    ProducerRecord<byte[], byte[]> letter(Record row) {
        ConsumerRecord<byte[], byte[]> source = records.get(sourceOf(row));
        Map<String, String> texts = new LinkedHashMap<>();
        texts.put("query", target.query);
        texts.put("reason", row.reason);
        texts.put("detail", row.detail == null ? "" : row.detail);
        if (row.topic != null) {
            texts.put("source_topic", row.topic);
        }
        if (row.partition >= 0) {
            texts.put("source_partition", Integer.toString(row.partition));
        }
        if (row.offset != Record.NO_OFFSET) {
            texts.put("source_offset", Long.toString(row.offset));
        }
        if (source != null) {
            boolean isTimed = source.timestampType() != TimestampType.NO_TIMESTAMP_TYPE;
            texts.put("source_timestamp", Long.toString(isTimed ? source.timestamp() : 0));
        }
        List<Header> headers = new ArrayList<>();
        texts.forEach((name, text) -> headers.add(new RecordHeader(name, Text.encode(text))));
        if (source != null) {
            for (Header each : source.headers()) {
                headers.add(new RecordHeader("source_header." + each.key(), each.value()));
            }
        }
        return new ProducerRecord<byte[], byte[]>(
                target.deadLettersTopic,
                row.sinkPartition % target.deadLettersPartitions,
                row.timestamp(),
                source == null ? row.key : source.key(),
                source == null ? row.value : source.value(),
                headers);
    }

    private Map<Source, ConsumerRecord<byte[], byte[]>> read(Set<Source> wanted) {
        Map<Source, ConsumerRecord<byte[], byte[]>> found = new HashMap<>();
        Map<String, Object> options =
                target.client(
                        target.applicationId + "-dead-letters",
                        "isolation.level", "read_committed",
                        "enable.auto.commit", false,
                        "allow.auto.create.topics", false,
                        "auto.offset.reset", "earliest",
                        "default.api.timeout.ms", (int) Duration.ofNanos(SILENCE_NS).toMillis(),
                        "request.timeout.ms", (int) Duration.ofNanos(SILENCE_NS).toMillis());
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            Map<TopicPartition, TreeSet<Long>> left = existing(consumer, wanted);
            consumer.assign(left.keySet());
            left.forEach((at, offsets) -> consumer.seek(at, offsets.first()));
            long heardAt = System.nanoTime();
            while (!left.isEmpty() && System.nanoTime() - heardAt < SILENCE_NS) {
                for (ConsumerRecord<byte[], byte[]> each : consumer.poll(LOOK)) {
                    heardAt = System.nanoTime();
                    TreeSet<Long> offsets = left.get(new TopicPartition(each.topic(), each.partition()));
                    if (offsets != null && offsets.contains(each.offset())) {
                        found.put(new Source(each.topic(), each.partition(), each.offset()), each);
                    }
                }
                goOn(consumer, left);
            }
        } catch (KafkaException failure) {
            // The dead letters that lack their record's bytes are counted, and the driver tells of them.
        }
        return found;
    }

    /** What is wanted, by partition, without what doesn't exist: deleted topics, and offsets that aren't there yet. */
    private static Map<TopicPartition, TreeSet<Long>> existing(
            KafkaConsumer<byte[], byte[]> consumer, Set<Source> wanted) {
        Set<TopicPartition> there = new HashSet<>();
        consumer
                .listTopics()
                .values()
                .forEach(of -> of.forEach(each -> there.add(new TopicPartition(each.topic(), each.partition()))));
        Map<TopicPartition, TreeSet<Long>> left = new HashMap<>();
        for (Source each : wanted) {
            TopicPartition at = new TopicPartition(each.topic(), each.partition());
            if (there.contains(at)) {
                left.computeIfAbsent(at, partition -> new TreeSet<>()).add(each.offset());
            }
        }
        consumer.endOffsets(left.keySet()).forEach((at, end) -> left.get(at).tailSet(end).clear());
        left.values().removeIf(TreeSet::isEmpty);
        return left;
    }

    /** Drops what is read or gone, and skips long gaps. */
    private static void goOn(KafkaConsumer<byte[], byte[]> consumer, Map<TopicPartition, TreeSet<Long>> left) {
        boolean isLess = false;
        for (Map.Entry<TopicPartition, TreeSet<Long>> each : left.entrySet()) {
            long position = consumer.position(each.getKey());
            each.getValue().headSet(position).clear();
            if (each.getValue().isEmpty()) {
                isLess = true;
            } else if (each.getValue().first() - position > GAP) {
                consumer.seek(each.getKey(), each.getValue().first());
            }
        }
        if (isLess) {
            left.values().removeIf(TreeSet::isEmpty);
            consumer.assign(left.keySet());
        }
    }
}
