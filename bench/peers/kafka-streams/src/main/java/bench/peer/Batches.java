package bench.peer;

import bench.peer.proto.BatchGetRequest;
import bench.peer.proto.BatchGetResponse;
import bench.peer.proto.GetResponse;
import io.grpc.Context;
import io.grpc.stub.StreamObserver;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;

/** Lookups of many keys: one call to each host for its keys, all hosts at once. */
final class Batches {
    private final LocalStores stores;
    private final Routes routes;
    private final Instances instances;

    Batches(final LocalStores stores, final Routes routes, final Instances instances) {
        this.stores = stores;
        this.routes = routes;
        this.instances = instances;
    }

    void get(final BatchGetRequest request, final StreamObserver<BatchGetResponse> caller) {
        if (request.getKeysCount() == 0) {
            caller.onNext(BatchGetResponse.getDefaultInstance());
            caller.onCompleted();
            return;
        }
        final Batch batch = new Batch(request, caller);
        if (request.getLocalOnly()) {
            try {
                batch.read(batch.all());
            } catch (final InvalidStateStoreException notHere) {
                caller.onError(Answers.unavailable(notHere.getMessage()));
            }
        } else {
            batch.ask(batch.all(), 0, 1);
        }
    }

    private final class Batch {
        private final BatchGetRequest request;
        private final StreamObserver<BatchGetResponse> caller;
        private final int[] partitions;
        private final GetResponse[] answers;
        private final AtomicInteger missing;
        private final AtomicBoolean failed = new AtomicBoolean();

        Batch(final BatchGetRequest request, final StreamObserver<BatchGetResponse> caller) {
            this.request = request;
            this.caller = caller;
            partitions = request.getKeysList().stream().mapToInt(routes::partitionOf).toArray();
            answers = new GetResponse[partitions.length];
            missing = new AtomicInteger(partitions.length);
        }

        int[] all() {
            return IntStream.range(0, partitions.length).toArray();
        }

        /** Answer for the keys at these places from local copies, all or none. */
        void read(final int[] places) {
            final ReadOnlyKeyValueStore<?, ?>[] copies = new ReadOnlyKeyValueStore<?, ?>[stores.partitionCount()];
            for (final int place : places) {
                final int partition = partitions[place];
                if (copies[partition] == null) {
                    copies[partition] = stores.copy(partition);
                }
                @SuppressWarnings("unchecked")
                final var copy = (ReadOnlyKeyValueStore<String, byte[]>) copies[partition];
                answers[place] = Answers.of(copy.get(request.getKeys(place)));
            }
            done(places.length);
        }

        /** Send the keys at these places to the nth host in the order of their partition. */
        void ask(final int[] places, final int nth, final int round) {
            final Map<Integer, List<HostInfo>> hosts = new HashMap<>();
            final Map<HostInfo, IntStream.Builder> groups = new HashMap<>();
            final IntStream.Builder exhausted = IntStream.builder();
            for (final int place : places) {
                final List<HostInfo> order = hosts.computeIfAbsent(partitions[place], routes::hosts);
                (nth < order.size() ? groups.computeIfAbsent(order.get(nth), host -> IntStream.builder()) : exhausted)
                        .add(place);
            }
            groups.forEach((host, group) -> send(host, group.build().toArray(), nth, round));
            final int[] left = exhausted.build().toArray();
            if (left.length > 0) {
                if (round == Answers.ROUNDS_MAX || Context.current().isCancelled()) {
                    fail("no instance answers for partition " + partitions[left[0]]);
                } else {
                    Answers.later(Context.current().wrap(() -> ask(left, 0, round + 1)));
                }
            }
        }

        private void send(final HostInfo host, final int[] places, final int nth, final int round) {
            if (routes.isSelf(host)) {
                try {
                    read(places);
                } catch (final InvalidStateStoreException notHere) {
                    ask(places, nth + 1, round);
                }
                return;
            }
            final BatchGetRequest.Builder part = BatchGetRequest.newBuilder().setLocalOnly(true);
            Arrays.stream(places).mapToObj(request::getKeys).forEach(part::addKeys);
            instances.at(host).batchGet(part.build(), new StreamObserver<>() {
                @Override
                public void onNext(final BatchGetResponse answer) {
                    for (int index = 0; index < places.length; index++) {
                        answers[places[index]] = answer.getAnswers(index);
                    }
                }

                @Override
                public void onError(final Throwable failure) {
                    ask(places, nth + 1, round);
                }

                @Override
                public void onCompleted() {
                    done(places.length);
                }
            });
        }

        private void done(final int count) {
            // The last one sends; the counter publishes what the others wrote.
            if (missing.addAndGet(-count) == 0) {
                caller.onNext(BatchGetResponse.newBuilder()
                        .addAllAnswers(Arrays.asList(answers))
                        .build());
                caller.onCompleted();
            }
        }

        private void fail(final String why) {
            if (failed.compareAndSet(false, true)) {
                caller.onError(Answers.unavailable(why));
            }
        }
    }
}
