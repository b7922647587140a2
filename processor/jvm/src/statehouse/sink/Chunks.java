package statehouse.sink;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayDeque;
import java.util.Iterator;
import java.util.NoSuchElementException;
import java.util.TreeMap;
import org.apache.spark.Partitioner;
import scala.Tuple2;

/** Records on their way to the task that writes their sink partition, many in a piece: Spark's cost is by the piece. */
final class Chunks {
    private static final int CHUNK_BYTES = 64 * 1024;
    private static final int HELD_BYTES_MAX = 16 * 1024 * 1024;

    private Chunks() {}

    /** Which task writes a sink partition. */
    static final class ByPartition extends Partitioner {
        private final int tasks;

        ByPartition(int tasks) {
            this.tasks = tasks;
        }

        @Override
        public int numPartitions() {
            return tasks;
        }

        @Override
        public int getPartition(Object key) {
            return (Integer) key % tasks;
        }
    }

    /** Packs records by sink partition, in the order in which they come. */
    static Iterator<Tuple2<Integer, byte[]>> pack(Iterator<Record> records) {
        return new Packing(records);
    }

    /** Unpacks what others have packed. */
    static Iterator<Record> unpack(Iterator<Tuple2<Integer, byte[]>> chunks) {
        return new Unpacking(chunks);
    }

    private static final class Chunk {
        final ByteArrayOutputStream bytes = new ByteArrayOutputStream(1024);
        final DataOutputStream out = new DataOutputStream(bytes);
    }

    private static final class Packing implements Iterator<Tuple2<Integer, byte[]>> {
        private final Iterator<Record> records;
        private final TreeMap<Integer, Chunk> open = new TreeMap<>();
        private final ArrayDeque<Tuple2<Integer, byte[]>> ready = new ArrayDeque<>();
        private long heldBytes;

        Packing(Iterator<Record> records) {
            this.records = records;
        }

        @Override
        public boolean hasNext() {
            while (ready.isEmpty() && records.hasNext()) {
                add(records.next());
            }
            if (ready.isEmpty()) {
                closeAll();
            }
            return !ready.isEmpty();
        }

        @Override
        public Tuple2<Integer, byte[]> next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            return ready.remove();
        }

        private void add(Record record) {
            Chunk chunk = open.computeIfAbsent(record.sinkPartition, partition -> new Chunk());
            int before = chunk.bytes.size();
            try {
                record.write(chunk.out);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
            heldBytes += chunk.bytes.size() - before;
            if (chunk.bytes.size() >= CHUNK_BYTES) {
                open.remove(record.sinkPartition);
                close(record.sinkPartition, chunk);
            } else if (heldBytes > HELD_BYTES_MAX) {
                closeAll();
            }
        }

        private void closeAll() {
            open.forEach(this::close);
            open.clear();
        }

        private void close(int partition, Chunk chunk) {
            heldBytes -= chunk.bytes.size();
            ready.add(new Tuple2<>(partition, chunk.bytes.toByteArray()));
        }
    }

    private static final class Unpacking implements Iterator<Record> {
        private final Iterator<Tuple2<Integer, byte[]>> chunks;
        private ByteArrayInputStream bytes = new ByteArrayInputStream(new byte[0]);
        private DataInputStream in = new DataInputStream(bytes);

        Unpacking(Iterator<Tuple2<Integer, byte[]>> chunks) {
            this.chunks = chunks;
        }

        @Override
        public boolean hasNext() {
            while (bytes.available() == 0) {
                if (!chunks.hasNext()) {
                    return false;
                }
                bytes = new ByteArrayInputStream(chunks.next()._2());
                in = new DataInputStream(bytes);
            }
            return true;
        }

        @Override
        public Record next() {
            if (!hasNext()) {
                throw new NoSuchElementException();
            }
            try {
                return Record.read(in);
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }
}
