package bench.peer;

import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReferenceArray;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.LagInfo;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/**
 * The copies this instance holds, active or standby.
 *
 * <p>A copy answers once it has been seen at the end of its changelog, and as long as it is not further behind than
 * the bound: a restoring copy would answer "not found" for keys that it has not read yet.
 */
final class LocalStores implements AutoCloseable {
    private static final long LAGS_EVERY_MS = 200;

    private final KafkaStreams streams;
    private final long maxLag;
    private final AtomicReferenceArray<ReadOnlyKeyValueStore<String, byte[]>> stores;
    private final AtomicReferenceArray<Copy> copies;
    private final ScheduledExecutorService lags = Executors.newSingleThreadScheduledExecutor();

    private record Copy(LagInfo lag, boolean caughtUp) {}

    LocalStores(final KafkaStreams streams, final int partitionCount, final long maxLag) {
        this.streams = streams;
        this.maxLag = maxLag;
        stores = new AtomicReferenceArray<>(partitionCount);
        copies = new AtomicReferenceArray<>(partitionCount);
        lags.scheduleWithFixedDelay(this::refreshLags, 0, LAGS_EVERY_MS, TimeUnit.MILLISECONDS);
    }

    int partitionCount() {
        return copies.length();
    }

    /**
     * Return the copy of a partition, readable.
     *
     * @throws InvalidStateStoreException there is none, or it is too far behind
     */
    ReadOnlyKeyValueStore<String, byte[]> copy(final int partition) {
        final Copy copy = copies.get(partition);
        if (copy == null || !copy.caughtUp() || copy.lag().offsetLag() > maxLag) {
            throw new InvalidStateStoreException("no copy of partition " + partition + " here that may answer");
        }
        // This object finds the store anew at each read, so it may be kept while tasks come and go.
        ReadOnlyKeyValueStore<String, byte[]> store = stores.get(partition);
        if (store == null) {
            store = streams.store(
                    StoreQueryParameters.fromNameAndType(
                                    Peer.STORE, QueryableStoreTypes.<String, byte[]>keyValueStore())
                            .withPartition(partition)
                            .enableStaleStores());
            stores.set(partition, store);
        }
        return store;
    }

    /** Return a copy's lag, if there is a copy. */
    Optional<LagInfo> lag(final int partition) {
        return Optional.ofNullable(copies.get(partition)).map(Copy::lag);
    }

    @Override
    public void close() {
        lags.shutdownNow();
    }

    private void refreshLags() {
        try {
            final Map<Integer, LagInfo> found =
                    streams.allLocalStorePartitionLags().getOrDefault(Peer.STORE, Map.of());
            for (int partition = 0; partition < copies.length(); partition++) {
                final LagInfo lag = found.get(partition);
                final Copy before = copies.get(partition);
                final boolean caughtUp = lag != null && (lag.offsetLag() == 0 || before != null && before.caughtUp());
                copies.set(partition, lag == null ? null : new Copy(lag, caughtUp));
            }
        } catch (final RuntimeException notNow) {
            // Before the start, in a rebalance, or without the broker: the last known lags stay.
        }
    }
}
