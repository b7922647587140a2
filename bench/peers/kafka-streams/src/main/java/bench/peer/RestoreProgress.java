package bench.peer;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.streams.processor.StateRestoreListener;

/** Counts the records restored into active tasks, and the time in which at least one restore is under way. */
final class RestoreProgress implements StateRestoreListener {
    private static final long SAY_EVERY_NS = 1_000_000_000L;

    private final Set<TopicPartition> underWay = new HashSet<>();
    private long records;
    private long pastNs;
    private long begin;
    private long saidAt;

    @Override
    public synchronized void onRestoreStart(
            final TopicPartition partition, final String store, final long from, final long end) {
        if (underWay.isEmpty()) {
            begin = System.nanoTime();
        }
        underWay.add(partition);
    }

    @Override
    public synchronized void onBatchRestored(
            final TopicPartition partition, final String store, final long end, final long count) {
        records += count;
        if (System.nanoTime() - saidAt > SAY_EVERY_NS) {
            say("restoring");
        }
    }

    @Override
    public synchronized void onRestoreEnd(final TopicPartition partition, final String store, final long total) {
        done(partition);
    }

    @Override
    public synchronized void onRestoreSuspended(
            final TopicPartition partition, final String store, final long total) {
        done(partition);
    }

    synchronized long records() {
        return records;
    }

    synchronized double seconds() {
        return (pastNs + (underWay.isEmpty() ? 0 : System.nanoTime() - begin)) / 1e9;
    }

    private void done(final TopicPartition partition) {
        if (underWay.remove(partition) && underWay.isEmpty()) {
            pastNs += System.nanoTime() - begin;
            say("restored");
        }
    }

    private void say(final String event) {
        saidAt = System.nanoTime();
        final double seconds = seconds();
        Say.line(
                event,
                Map.of("records", records, "seconds", seconds, "records_per_second", Math.round(records / seconds)));
    }
}
