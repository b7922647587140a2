package bench.peer;

import bench.peer.proto.GetRequest;
import bench.peer.proto.GetResponse;
import io.grpc.Context;
import io.grpc.stub.StreamObserver;
import java.util.List;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.HostInfo;

/** Single lookups: from a local copy, or from the instances that have one, the active first. */
final class Gets {
    private final LocalStores stores;
    private final Routes routes;
    private final Instances instances;

    Gets(final LocalStores stores, final Routes routes, final Instances instances) {
        this.stores = stores;
        this.routes = routes;
        this.instances = instances;
    }

    void get(final GetRequest request, final StreamObserver<GetResponse> caller) {
        final int partition = routes.partitionOf(request.getKey());
        if (!request.getLocalOnly()) {
            new Attempts(request.getKey(), partition, caller).next();
            return;
        }
        final GetResponse answer;
        try {
            answer = read(partition, request.getKey());
        } catch (final InvalidStateStoreException notHere) {
            caller.onError(Answers.unavailable(notHere.getMessage()));
            return;
        }
        caller.onNext(answer);
        caller.onCompleted();
    }

    private GetResponse read(final int partition, final String key) {
        return Answers.of(stores.copy(partition).get(key));
    }

    /** One lookup on its way through the hosts that may answer it. */
    private final class Attempts implements StreamObserver<GetResponse> {
        private final String key;
        private final int partition;
        private final StreamObserver<GetResponse> caller;
        private List<HostInfo> hosts;
        private int asked;
        private int round = 1;

        Attempts(final String key, final int partition, final StreamObserver<GetResponse> caller) {
            this.key = key;
            this.partition = partition;
            this.caller = caller;
            hosts = routes.hosts(partition);
        }

        void next() {
            while (asked < hosts.size()) {
                final HostInfo host = hosts.get(asked++);
                if (!routes.isSelf(host)) {
                    instances.at(host)
                            .get(GetRequest.newBuilder().setKey(key).setLocalOnly(true).build(), this);
                    return;
                }
                try {
                    onNext(read(partition, key));
                    onCompleted();
                    return;
                } catch (final InvalidStateStoreException notHere) {
                    // The next host may have it.
                }
            }
            if (round == Answers.ROUNDS_MAX || Context.current().isCancelled()) {
                caller.onError(Answers.unavailable("no instance answers for partition " + partition));
                return;
            }
            round++;
            Answers.later(Context.current().wrap(() -> {
                hosts = routes.hosts(partition);
                asked = 0;
                next();
            }));
        }

        @Override
        public void onNext(final GetResponse answer) {
            caller.onNext(answer);
        }

        @Override
        public void onError(final Throwable failure) {
            next();
        }

        @Override
        public void onCompleted() {
            caller.onCompleted();
        }
    }
}
