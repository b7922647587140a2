import java.io.BufferedOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Random;
import org.apache.kafka.common.utils.Utils;

/**
 * Prints what Kafka's own code says about random keys, one key a line:
 *
 * <pre>hex-of-key,murmur2,partition of 1,partition of 2,partition of 3, ...</pre>
 *
 * <p>The first line names the partition counts. Run as {@code java -cp <kafka jars> PartitionerVectors.java N SEED};
 * every further argument is a key in hex (or {@code empty}), printed before the random ones.
 */
public final class PartitionerVectors {
    private static final int[] PARTITION_COUNTS = {1, 2, 3, 4, 6, 7, 12, 50, 200, 4096, Integer.MAX_VALUE};
    private static final int SHORT_MAX = 64;
    private static final int LONG_MAX = 5000;
    private static final int LONG_EVERY = 100;

    public static void main(String[] arguments) {
        int count = Integer.parseInt(arguments[0]);
        Random random = new Random(Long.parseLong(arguments[1]));
        try (PrintStream out = new PrintStream(new BufferedOutputStream(System.out), false, StandardCharsets.US_ASCII)) {
            StringBuilder header = new StringBuilder("key,murmur2");
            for (int partitions : PARTITION_COUNTS) {
                header.append(',').append(partitions);
            }
            out.println(header);
            for (int i = 2; i < arguments.length; i++) {
                out.println(line(arguments[i].equals("empty") ? new byte[0] : HexFormat.of().parseHex(arguments[i])));
            }
            for (int i = 0; i < count; i++) {
                // Short lengths come in turn, so that each of them, and each tail of 0 to 3 bytes, is met often.
                int length = i % LONG_EVERY == LONG_EVERY - 1 ? random.nextInt(LONG_MAX) : i % (SHORT_MAX + 1);
                byte[] key = new byte[length];
                random.nextBytes(key);
                out.println(line(key));
            }
        }
    }

    private static String line(byte[] key) {
        int hash = Utils.murmur2(key);
        StringBuilder line = new StringBuilder(HexFormat.of().formatHex(key)).append(',').append(hash);
        for (int partitions : PARTITION_COUNTS) {
            line.append(',').append(Utils.toPositive(hash) % partitions);
        }
        return line.toString();
    }
}
