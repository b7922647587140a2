package statehouse.sink;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * A task's part of the record cache, where a key's later update replaces the earlier one.
 *
 * <p>A row with a source offset is later than the rows before it. Rows without one are ordered by timestamp, then as
 * they came, because the rows of Spark's own joins come unordered. When the part is full, the keys updated longest ago
 * leave early, until the others fill half of it: nothing replaces those any more. All is written when the batch ends,
 * which is when Kafka Streams flushes its cache: at the commit.
 */
final class RecordCache {
    /** What a cached row takes in addition to its key and value, about. */
    static final int ROW_BYTES = 40;

    /** A sink partition and an output. */
    record Place(int partition, int output) {}

    private record Key(int output, byte[] bytes) {
        @Override
        public boolean equals(Object other) {
            return other instanceof Key key && key.output == output && Arrays.equals(key.bytes, bytes);
        }

        @Override
        public int hashCode() {
            return 31 * Arrays.hashCode(bytes) + output;
        }
    }

    private final long maxBytes;
    private final boolean[] isCached;
    private final LinkedHashMap<Key, Record> held = new LinkedHashMap<>();
    private long heldBytes;
    private final List<Record> left = new ArrayList<>();
    private final List<Record> others = new ArrayList<>();

    /** How many rows were replaced by a later one and will not be written. */
    final Map<Place, Long> saved = new HashMap<>();

    /** How many rows left before the end because the cache was full. */
    final Map<Place, Long> early = new HashMap<>();

    RecordCache(long maxBytes, List<Target.Output> outputs) {
        this.maxBytes = maxBytes;
        isCached = new boolean[outputs.size()];
        for (int place = 0; place < isCached.length; place++) {
            isCached[place] = outputs.get(place).isCached();
        }
    }

    /** Takes a row, in the order in which they come. Rows that aren't cached pass by. */
    void put(Record row) {
        if (row.isRefused() || !isCached[row.output]) {
            others.add(row);
        } else if (maxBytes == 0) {
            left.add(row);
        } else {
            hold(row);
        }
    }

    /** Empties the cache; returns all rows to write. Those of a key are in order: the last one counts. */
    List<Record> flush() {
        List<Record> cached = new ArrayList<>(left);
        cached.addAll(held.values());
        if (!left.isEmpty()) {
            cached.sort(Comparator.comparingLong(RecordCache::time)); // stable
        }
        others.addAll(cached);
        held.clear();
        left.clear();
        heldBytes = 0;
        return others;
    }

    private void hold(Record row) {
        Key key = new Key(row.output, row.key);
        Record before = held.get(key);
        if (before != null) {
            saved.merge(place(row), 1L, Long::sum);
            if (time(row) < time(before)) {
                return;
            }
            held.remove(key); // so that the key comes last again
            heldBytes -= bytes(before);
        }
        held.put(key, row);
        heldBytes += bytes(row);
        if (heldBytes > maxBytes) {
            makeRoom();
        }
    }

    private void makeRoom() {
        Iterator<Record> oldest = held.values().iterator();
        while (heldBytes > maxBytes / 2 && oldest.hasNext()) {
            Record leaving = oldest.next();
            oldest.remove();
            heldBytes -= bytes(leaving);
            left.add(leaving);
            early.merge(place(leaving), 1L, Long::sum);
        }
    }

    private static long time(Record row) {
        return row.offset == Record.NO_OFFSET ? row.timestampMs : 0;
    }

    private static long bytes(Record row) {
        return row.size() + ROW_BYTES;
    }

    private static Place place(Record row) {
        return new Place(row.sinkPartition, row.output);
    }
}
