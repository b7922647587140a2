package statehouse.sink;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.function.LongSupplier;

/**
 * Keeps the writers of a JVM that nobody uses, because to initialise one costs ten times as much as a small commit.
 *
 * <p>Each has a thread, buffers and connections: so those that were idle for long go when another one comes back.
 */
public final class Writers {
    /** Those of this JVM. A worker rarely serves more partitions. */
    static final Writers KEPT = new Writers(64, 120_000, () -> System.nanoTime() / 1_000_000);

    private record Key(String target, int partition) {}

    private record Kept(PartitionWriter writer, long sinceMs) {}

    private final int most;
    private final long idleMs;
    private final LongSupplier clockMs;
    private final LinkedHashMap<Key, Kept> kept = new LinkedHashMap<>();

    /** Prepares. `clockMs`: any clock that doesn't go back. */
    public Writers(int most, long idleMs, LongSupplier clockMs) {
        this.most = most;
        this.idleMs = idleMs;
        this.clockMs = clockMs;
    }

    /** Returns the writer of a partition, the kept one if there is one. Nobody else gets it until it is given back. */
    public synchronized PartitionWriter take(Target target, int partition) {
        Kept found = kept.remove(new Key(target.text, partition));
        return found == null ? new PartitionWriter(target, partition) : found.writer();
    }

    /** Keeps a writer. */
    public void giveBack(PartitionWriter writer) {
        List<PartitionWriter> dropped = new ArrayList<>(); // closed outside of the lock, because that takes a moment
        synchronized (this) {
            long now = clockMs.getAsLong();
            // Two attempts may run together. The one that comes back last mostly has the newer producer, or is fenced.
            Kept other = kept.remove(new Key(writer.target.text, writer.partition));
            if (other != null) {
                dropped.add(other.writer());
            }
            kept.put(new Key(writer.target.text, writer.partition), new Kept(writer, now));
            Iterator<Kept> oldest = kept.values().iterator();
            for (Kept each = oldest.next(); kept.size() > most || now - each.sinceMs() > idleMs; each = oldest.next()) {
                oldest.remove();
                dropped.add(each.writer());
            }
        }
        dropped.forEach(PartitionWriter::close);
    }

    /** The number of kept writers. */
    public synchronized int size() {
        return kept.size();
    }
}
