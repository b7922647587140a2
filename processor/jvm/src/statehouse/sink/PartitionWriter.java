package statehouse.sink;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes batches to one sink partition, by the protocol of processor/sink/protocol.py. Not thread-safe.
 *
 * <p>An attempt initialises, which fences every earlier producer of the partition; then it reads the marker; then it
 * writes. A kept producer that isn't fenced wrote last: it remembers the marker and doesn't read it.
 */
public final class PartitionWriter implements AutoCloseable {
    private static final String CLAIM = "claim";
    private static final long FIRST_PAUSE_MS = 50;
    private static final long LONGEST_PAUSE_MS = 1_000;

    /** Sends the records of a batch; called again if the transaction must be repeated. */
    public interface Records {
        /** Sends them. */
        void send(KafkaProducer<byte[], byte[]> producer);
    }

    /** Somebody else has claimed the partition for a newer batch, and has not written that: it may lack this one. */
    public static final class ForeignClaim extends RuntimeException {
        ForeignClaim(String message) {
            super(message);
        }
    }

    /** A partition's batch could not be committed in time; Spark runs the task again. */
    public static final class WriteTimeout extends RuntimeException {
        WriteTimeout(String message, Throwable cause) {
            super(message, cause);
        }
    }

    final Target target;
    final int partition;

    /** Number of retries of the newest write. */
    int retries;

    private KafkaProducer<byte[], byte[]> producer;
    private long marker;
    private boolean isClaim;

    /** Prepares; the first write, or `initialise`, connects. */
    public PartitionWriter(Target target, int partition) {
        this.target = target;
        this.partition = partition;
    }

    /** Commits a batch once; returns false if it was committed before. */
    public boolean write(long batch, Records records) {
        boolean isWritten = commit(batch, records);
        if (!isWritten && isClaim) {
            throw new ForeignClaim(
                    "partition %d of query %s is claimed for batch %d".formatted(partition, target.query, marker));
        }
        return isWritten;
    }

    /** Lets nobody write a batch before this one any more; nothing to do if that is so already. */
    public void claim(long batch) {
        commit(batch - 1, null);
    }

    /** Commits a batch's records and marker, or a claim if there are no records; returns false if it is over. */
    private boolean commit(long batch, Records records) {
        long giveUpAt = System.nanoTime() + Duration.ofMillis(target.writeTimeoutMs).toNanos();
        for (retries = 0; ; retries++) {
            long began = System.nanoTime();
            try {
                if (producer == null) {
                    initialise();
                }
                if (marker > batch) {
                    return false;
                }
                transact(batch, records);
                return true;
            } catch (KafkaException failure) {
                Failures meaning = Failures.of(failure);
                close();
                if (meaning == Failures.REFUSED) {
                    throw failure;
                }
                long leftMs = (giveUpAt - System.nanoTime()) / 1_000_000;
                if (leftMs <= 0) {
                    throw new WriteTimeout(
                            "partition %d of query %s could not be written in %s s: %s"
                                    .formatted(
                                            partition,
                                            target.query,
                                            target.writeTimeoutMs / 1000.0,
                                            Failures.text(failure)),
                            failure);
                }
                // Another attempt of this task may be running, as with speculative execution. It needs about as long as
                // this one has taken: an earlier retry would fence it, and be fenced by it in turn.
                long tookMs = meaning == Failures.FENCED ? (System.nanoTime() - began) / 1_000_000 : 0;
                long pauseMs = Math.min(FIRST_PAUSE_MS << Math.min(retries, 10), LONGEST_PAUSE_MS);
                pause(Math.min(Math.max(pauseMs, tookMs), leftMs));
            } catch (RuntimeException | Error failure) {
                close();
                throw failure;
            }
        }
    }

    /** Fences earlier producers, then reads the marker. */
    public void initialise() {
        String id = target.transactionalId(partition);
        KafkaProducer<byte[], byte[]> made =
                new KafkaProducer<>(
                        target.client(
                                id,
                                "transactional.id", id,
                                "transaction.timeout.ms", target.transactionTimeoutMs,
                                "max.block.ms", target.rpcTimeoutMs(),
                                "delivery.timeout.ms", Math.max(target.writeTimeoutMs, target.rpcTimeoutMs()),
                                "linger.ms", 0, // the commit flushes anyway
                                "batch.size", 256 * 1024,
                                "max.request.size", Integer.MAX_VALUE, // the broker says what is too large
                                "acks", "all"),
                        new ByteArraySerializer(),
                        new ByteArraySerializer());
        try {
            naming("WRITE on transactional id " + id, made::initTransactions);
            readMarker(id);
        } catch (RuntimeException | Error failure) {
            made.close(Duration.ZERO);
            throw failure;
        }
        producer = made;
    }

    /** Drops the producer; the next one aborts its open transaction, or the broker does after the timeout. */
    @Override
    public void close() {
        if (producer != null) {
            producer.close(Duration.ZERO);
            producer = null;
        }
    }

    private void transact(long batch, Records records) {
        producer.beginTransaction();
        try {
            // Before the records: the client would wait for this until its time is over, if it learnt by a record that
            // it is fenced.
            OffsetAndMetadata next = new OffsetAndMetadata(batch + 1, records == null ? CLAIM : "");
            naming(
                    "READ on group " + target.markerGroup,
                    () ->
                            producer.sendOffsetsToTransaction(
                                    Map.of(markerAt(), next), new ConsumerGroupMetadata(target.markerGroup)));
            if (records != null) {
                records.send(producer);
            }
            producer.commitTransaction();
        } catch (RuntimeException failure) {
            abort(failure);
            throw failure;
        }
        marker = batch + 1;
        isClaim = records == null;
    }

    /** Aborts, if that can be done immediately: else readers would wait for what is open until the broker ends it. */
    private void abort(RuntimeException failure) {
        if (failure instanceof KafkaException && Failures.of(failure) != Failures.REFUSED) {
            return; // fenced, or nobody answers: the next producer of the partition aborts it
        }
        try {
            producer.abortTransaction();
        } catch (KafkaException second) {
            failure.addSuppressed(second);
        }
    }

    private void readMarker(String clientId) {
        Map<String, Object> options =
                target.client(
                        clientId,
                        "group.id", target.markerGroup,
                        // Wait for what another attempt is about to commit.
                        "isolation.level", "read_committed",
                        "enable.auto.commit", false,
                        "default.api.timeout.ms", target.rpcTimeoutMs());
        // Not kept: it would be one more connection for each partition.
        try (KafkaConsumer<byte[], byte[]> markers =
                new KafkaConsumer<>(options, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            Map<TopicPartition, OffsetAndMetadata> found = new HashMap<>();
            naming("READ on group " + target.markerGroup, () -> found.putAll(markers.committed(Set.of(markerAt()))));
            OffsetAndMetadata committed = found.get(markerAt());
            marker = committed == null ? 0 : Math.max(0, committed.offset());
            isClaim = committed != null && CLAIM.equals(committed.metadata());
        }
    }

    private TopicPartition markerAt() {
        return new TopicPartition(target.markerTopic, partition);
    }

    /** Has a refusal name the right that is missing. */
    private static void naming(String right, Runnable call) {
        try {
            call.run();
        } catch (AuthorizationException failure) {
            throw new AuthorizationException(
                    failure.getMessage() + ": " + right + " is missing (docs/kafka-security.md)", failure);
        }
    }

    private static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException("stopped while a sink partition waited", interrupted);
        }
    }
}
