package bench.peer;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * What bench.truth asks for: of each account its balance, and how many transfers it had.
 *
 * <p>A record is one transfer, "payer,payee,amount"; without a payer it opens the payee's account. An account without
 * money is deleted.
 */
final class Bank {
    private static final String ACCOUNTS = "accounts/";
    private static final String COUNTERS = "counters/";

    private Bank() {}

    static Topology topology(final String topic) {
        final StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMap((pair, transfer) -> changes(transfer.split(",", -1)))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
                .aggregate(
                        () -> new byte[] {'0'},
                        Bank::changed,
                        Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as(Peer.STORE)
                                .withKeySerde(Serdes.String())
                                .withValueSerde(Serdes.ByteArray()));
        return builder.build();
    }

    private static List<KeyValue<String, Long>> changes(final String[] transfer) {
        final long amount = Long.parseLong(transfer[2]);
        final List<KeyValue<String, Long>> changes = new ArrayList<>(4);
        if (!transfer[0].isEmpty()) {
            changes.add(KeyValue.pair(ACCOUNTS + transfer[0], -amount));
            changes.add(KeyValue.pair(COUNTERS + transfer[0], 1L));
        }
        changes.add(KeyValue.pair(ACCOUNTS + transfer[1], amount));
        changes.add(KeyValue.pair(COUNTERS + transfer[1], 1L));
        return changes;
    }

    private static byte[] changed(final String key, final long change, final byte[] before) {
        final long sum = Long.parseLong(new String(before, StandardCharsets.US_ASCII)) + change;
        return sum == 0 && key.startsWith(ACCOUNTS)
                ? null
                : Long.toString(sum).getBytes(StandardCharsets.US_ASCII);
    }
}
