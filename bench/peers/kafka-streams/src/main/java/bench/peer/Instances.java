package bench.peer;

import bench.peer.proto.PeerServiceGrpc;
import io.grpc.ManagedChannel;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.streams.state.HostInfo;

/** Connections to the other instances. */
final class Instances implements AutoCloseable {
    private static final long ATTEMPT_TIMEOUT_MS = 1_000;

    private final boolean directExecutor;
    private final ConcurrentMap<HostInfo, ManagedChannel> channels = new ConcurrentHashMap<>();

    Instances(final boolean directExecutor) {
        this.directExecutor = directExecutor;
    }

    /** Return a stub; call it immediately, because its timeout begins now. */
    PeerServiceGrpc.PeerServiceStub at(final HostInfo host) {
        return PeerServiceGrpc.newStub(channel(host)).withDeadlineAfter(ATTEMPT_TIMEOUT_MS, TimeUnit.MILLISECONDS);
    }

    /** Return a stub for callers that may block. */
    PeerServiceGrpc.PeerServiceBlockingStub blockingAt(final HostInfo host) {
        return PeerServiceGrpc.newBlockingStub(channel(host));
    }

    @Override
    public void close() {
        channels.values().forEach(ManagedChannel::shutdownNow);
    }

    private ManagedChannel channel(final HostInfo host) {
        return channels.computeIfAbsent(host, this::connect);
    }

    private ManagedChannel connect(final HostInfo host) {
        final NettyChannelBuilder builder =
                NettyChannelBuilder.forAddress(host.host(), host.port()).usePlaintext();
        if (directExecutor) {
            builder.directExecutor();
        }
        return builder.build();
    }
}
