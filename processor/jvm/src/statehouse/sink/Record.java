package statehouse.sink;

import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;

/** A record that is placed, or a refused row: one with a reason, which keeps the key and value that it came with. */
final class Record {
    /** In place of a source offset that there is none of. */
    static final long NO_OFFSET = -1;

    int sinkPartition;
    final int output;
    final byte[] key;
    final byte[] value;

    /** Epoch milliseconds; 0 or less: the time of the write. */
    final long timestampMs;

    /** The place of the source record, as far as the row has it: null, -1. */
    final String topic;

    final int partition;
    final long offset;
    final String reason;
    final String detail;

    Record(
            int output,
            byte[] key,
            byte[] value,
            long timestampMs,
            String topic,
            int partition,
            long offset,
            String reason,
            String detail) {
        this.output = output;
        this.key = key;
        this.value = value;
        this.timestampMs = timestampMs;
        this.topic = topic;
        this.partition = partition;
        this.offset = offset;
        this.reason = reason;
        this.detail = detail;
    }

    boolean isRefused() {
        return reason != null;
    }

    /** The timestamp for Kafka's client: null is the time of the write. */
    Long timestamp() {
        return timestampMs > 0 ? timestampMs : null;
    }

    /** The bytes of key and value. */
    int size() {
        return (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
    }

    void write(DataOutputStream out) throws IOException {
        out.writeInt(sinkPartition);
        out.writeInt(output);
        writeBytes(out, key);
        writeBytes(out, value);
        out.writeLong(timestampMs);
        out.writeInt(partition);
        out.writeLong(offset);
        out.writeBoolean(isRefused());
        if (isRefused()) {
            writeText(out, topic);
            writeText(out, reason);
            writeText(out, detail);
        }
    }

    static Record read(DataInputStream in) throws IOException {
        int sinkPartition = in.readInt();
        int output = in.readInt();
        byte[] key = readBytes(in);
        byte[] value = readBytes(in);
        long timestampMs = in.readLong();
        int partition = in.readInt();
        long offset = in.readLong();
        boolean isRefused = in.readBoolean();
        String topic = isRefused ? readText(in) : null;
        String reason = isRefused ? readText(in) : null;
        String detail = isRefused ? readText(in) : null;
        Record read = new Record(output, key, value, timestampMs, topic, partition, offset, reason, detail);
        read.sinkPartition = sinkPartition;
        return read;
    }

    private static void writeBytes(DataOutputStream out, byte[] bytes) throws IOException {
        out.writeInt(bytes == null ? -1 : bytes.length);
        if (bytes != null) {
            out.write(bytes);
        }
    }

    private static byte[] readBytes(DataInputStream in) throws IOException {
        int length = in.readInt();
        return length < 0 ? null : in.readNBytes(length);
    }

    private static void writeText(DataOutputStream out, String text) throws IOException {
        writeBytes(out, text == null ? null : Text.encode(text));
    }

    private static String readText(DataInputStream in) throws IOException {
        byte[] bytes = readBytes(in);
        return bytes == null ? null : Text.lenient(bytes);
    }
}
