package statehouse.sink;

import org.apache.kafka.common.utils.Utils;
import org.apache.spark.sql.catalyst.InternalRow;

/** Makes records of a query's rows: each is a struct with RECORD_COLUMNS of processor/sink/task_rows.py. */
final class Rows {
    private static final int OUTPUT = 0;
    private static final int KEY = 1;
    private static final int SUFFIX = 2;
    private static final int VALUE = 3;
    private static final int TIMESTAMP_MS = 4;
    private static final int TOPIC = 5;
    private static final int PARTITION = 6;
    private static final int OFFSET = 7;
    private static final int REASON = 8;
    private static final int DETAIL = 9;
    private static final int COLUMNS = 10;

    private final Target target;

    Rows(Target target) {
        this.target = target;
    }

    /** Returns the record of a row, judged and placed. `column`: which one of the row has the struct. */
    Record record(InternalRow row, int column) {
        InternalRow from = row.getStruct(column, COLUMNS);
        int output = from.getInt(OUTPUT);
        byte[] key = from.isNullAt(KEY) ? null : from.getBinary(KEY);
        byte[] value = from.isNullAt(VALUE) ? null : from.getBinary(VALUE);
        String reason = text(from, REASON);
        String detail = text(from, DETAIL);
        if (reason == null && value != null) {
            detail = Values.problem(target.outputs().get(output), key, value);
            reason = detail == null ? null : Values.REASON;
        }
        int partition = from.isNullAt(PARTITION) ? -1 : from.getInt(PARTITION);
        Record made =
                new Record(
                        output,
                        reason == null ? joined(key, from) : key,
                        value,
                        from.isNullAt(TIMESTAMP_MS) ? 0 : from.getLong(TIMESTAMP_MS),
                        reason == null ? null : text(from, TOPIC),
                        partition,
                        from.isNullAt(OFFSET) ? Record.NO_OFFSET : from.getLong(OFFSET),
                        reason,
                        detail);
        made.sinkPartition = place(reason == null, key, partition, output);
        return made;
    }

    /**
     * The key of a record, without window or session, selects the partition; dead letters and records without a key
     * go to the number of their source partition, modulo the count.
     */
    private int place(boolean isRecord, byte[] key, int partition, int output) {
        int hash = isRecord && key != null ? Utils.toPositive(Utils.murmur2(key)) : Math.max(partition, 0);
        return hash % (isRecord ? target.outputs().get(output).partitions() : target.partitions);
    }

    private static byte[] joined(byte[] key, InternalRow from) {
        if (key == null || from.isNullAt(SUFFIX)) {
            return key;
        }
        byte[] suffix = from.getBinary(SUFFIX);
        if (suffix.length == 0) {
            return key;
        }
        byte[] whole = new byte[key.length + suffix.length];
        System.arraycopy(key, 0, whole, 0, key.length);
        System.arraycopy(suffix, 0, whole, key.length, suffix.length);
        return whole;
    }

    private static String text(InternalRow from, int column) {
        return from.isNullAt(column) ? null : from.getUTF8String(column).toString();
    }
}
