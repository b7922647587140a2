package statehouse.sink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Headers;

/**
 * Writes a task's part of one batch.
 *
 * <p>All records of a sink partition are in one task. A task may have several partitions and writes each in its own
 * transaction. A partition without records takes no part in the batch, also when the batch runs again.
 */
final class Task implements Serializable {
    private final Target target;
    private final long batch;
    private final long cacheBytes;

    /** Prepares. `cacheBytes`: this task's part of the record cache. */
    Task(Target target, long batch, long cacheBytes) {
        this.target = target;
        this.batch = batch;
        this.cacheBytes = cacheBytes;
    }

    private static final class Share {
        final List<Record> records = new ArrayList<>();
        List<Record> refused = new ArrayList<>();
    }

    /** Writes the records; returns a report, or null if there are no records. */
    String write(Iterator<Record> records) {
        if (!records.hasNext()) {
            return null;
        }
        RecordCache cache = new RecordCache(cacheBytes, target.outputs());
        records.forEachRemaining(cache::put);
        // A repeated transaction needs its records again, so they are kept until the commit.
        TreeMap<Integer, Share> shares = new TreeMap<>();
        for (Record each : cache.flush()) {
            Share share = shares.computeIfAbsent(each.sinkPartition, partition -> new Share());
            (each.isRefused() ? share.refused : share.records).add(each);
        }
        DeadLetters letters = new DeadLetters(target);
        List<Record> refused = new ArrayList<>();
        for (Share share : shares.values()) {
            share.refused = DeadLetters.firstOfEach(share.refused);
            refused.addAll(share.refused);
        }
        letters.readSources(refused);
        Report whole = new Report();
        whole.unread(letters.unread);
        for (Report each : writeAll(shares, cache, letters)) {
            whole.add(each);
        }
        return whole.text();
    }

    private List<Report> writeAll(TreeMap<Integer, Share> shares, RecordCache cache, DeadLetters letters) {
        if (shares.size() == 1) {
            return List.of(writeOne(shares.firstKey(), shares.firstEntry().getValue(), cache, letters));
        }
        List<Callable<Report>> calls = new ArrayList<>();
        shares.forEach((partition, share) -> calls.add(() -> writeOne(partition, share, cache, letters)));
        return Calls.all(calls);
    }

    private Report writeOne(int partition, Share share, RecordCache cache, DeadLetters letters) {
        Report report = new Report();
        PartitionWriter writer = Writers.KEPT.take(target, partition);
        Sent sent = new Sent(partition, share, letters);
        try {
            if (writer.write(batch, sent)) {
                count(report, partition, share, cache);
                sent.ends().forEach(report::end);
            } else {
                report.count("", Report.SKIPPED, 1);
            }
        } catch (PartitionWriter.ForeignClaim claimed) {
            // Not a failure of the task: Spark would only run it again.
            report.count("", Report.CLAIMED, 1);
        }
        if (writer.retries > 0) {
            report.count("", Report.RETRIED, writer.retries);
        }
        Writers.KEPT.giveBack(writer);
        return report;
    }

    private void count(Report report, int partition, Share share, RecordCache cache) {
        long[][] tallies = new long[target.outputs().size()][3];
        for (Record each : share.records) {
            long[] tally = tallies[each.output];
            tally[each.value == null ? 1 : 0]++;
            tally[2] += each.size();
        }
        for (int place = 0; place < tallies.length; place++) {
            Target.Output output = target.outputs().get(place);
            String[] kinds = {Report.CHANGELOG, Report.TOMBSTONE, Report.BYTES};
            for (int kind = 0; kind < kinds.length; kind++) {
                if (tallies[place][kind] > 0) {
                    report.count(output.name(), kinds[kind], tallies[place][kind]);
                }
            }
            if (output.isCached()) {
                RecordCache.Place at = new RecordCache.Place(partition, place);
                report.count(output.name(), Report.SAVED, cache.saved.getOrDefault(at, 0L));
                report.count(output.name(), Report.EARLY, cache.early.getOrDefault(at, 0L));
            }
        }
        for (Record each : share.refused) {
            report.count("", each.reason, 1);
        }
    }

    /** The records of a partition, and where they ended when they were sent last. */
    private final class Sent implements PartitionWriter.Records {
        private final int partition;
        private final Share share;
        private final DeadLetters letters;
        private final Map<TopicPartition, Future<RecordMetadata>> last = new HashMap<>();

        Sent(int partition, Share share, DeadLetters letters) {
            this.partition = partition;
            this.share = share;
            this.letters = letters;
        }

        @Override
        public void send(KafkaProducer<byte[], byte[]> producer) {
            last.clear();
            @SuppressWarnings({"unchecked", "rawtypes"})
            Future<RecordMetadata>[] ofOutputs = new Future[target.outputs().size()];
            // Compaction may leave any record of a batch, so each names it. Topics are their users' own.
            Headers ofStores = BatchHeader.of(batch);
            Headers ofTopics = BatchHeader.none();
            for (Record each : share.records) {
                Target.Output output = target.outputs().get(each.output);
                Headers headers = output.isStore() ? ofStores : ofTopics;
                ofOutputs[each.output] = producer.send(new Sendable(output.topic(), partition, each, headers));
            }
            for (int place = 0; place < ofOutputs.length; place++) {
                if (ofOutputs[place] != null) {
                    last.put(new TopicPartition(target.outputs().get(place).topic(), partition), ofOutputs[place]);
                }
            }
            for (Record each : share.refused) {
                producer.send(letters.letter(each));
            }
        }

        /** A record that shares its headers with others: Kafka would make a copy for each. */
        private static final class Sendable extends ProducerRecord<byte[], byte[]> {
            private final Headers shared;

            Sendable(String topic, int partition, Record of, Headers shared) {
                super(topic, partition, of.timestamp(), of.key, of.value);
                this.shared = shared;
            }

            @Override
            public Headers headers() {
                return shared;
            }
        }

        /** After the commit: by partition the offset behind the last record. */
        Map<TopicPartition, Long> ends() {
            Map<TopicPartition, Long> ends = new HashMap<>();
            last.forEach(
                    (at, sent) -> {
                        try {
                            ends.put(at, sent.get().offset() + 1);
                        } catch (InterruptedException | ExecutionException failure) {
                            throw new IllegalStateException("a committed record has no offset", failure);
                        }
                    });
            return ends;
        }
    }
}
