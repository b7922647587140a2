package statehouse.sink;

import java.nio.ByteBuffer;
import java.util.Arrays;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;

/** The header of a store's records that has their batch's id, as statehouse/contract/batch_cuts.py describes it. */
final class BatchHeader {
    private static final String NAME = "b";
    private static final int BYTES_MAX = 9;

    private BatchHeader() {}

    /** The headers of a batch's records, which all share them. */
    static Headers of(long batch) {
        return shared(new RecordHeader(NAME, value(batch)));
    }

    /** Those of records of other topics than stores'. */
    static Headers none() {
        return shared();
    }

    private static Headers shared(Header... headers) {
        RecordHeaders found = new RecordHeaders(headers);
        found.setReadOnly();
        return found;
    }

    /** The id: seven bits a byte, the lowest first. */
    public static byte[] value(long batch) {
        ByteBuffer bytes = ByteBuffer.allocate(BYTES_MAX);
        long rest = batch;
        while (rest > 0x7F) {
            bytes.put((byte) (rest & 0x7F | 0x80));
            rest >>>= 7;
        }
        bytes.put((byte) rest);
        return Arrays.copyOf(bytes.array(), bytes.position());
    }
}
