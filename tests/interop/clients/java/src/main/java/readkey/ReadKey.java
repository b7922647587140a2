package readkey;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.Durations;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.RetryInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status.Code;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import statehouse.v1.Errors.Candidate;
import statehouse.v1.Errors.LookupError;
import statehouse.v1.QueryServiceGrpc;
import statehouse.v1.QueryServiceGrpc.QueryServiceBlockingStub;
import statehouse.v1.QueryServiceOuterClass.GetRequest;
import statehouse.v1.QueryServiceOuterClass.GetResponse;
import statehouse.v1.Types.Freshness;
import statehouse.v1.Types.Key;
import statehouse.v1.Types.Positions;
import statehouse.v1.Types.ReplicaStamp;
import statehouse.v1.Types.StorePosition;

/** Reads a key of a store through a router, and then again, no older than the first time. */
public final class ReadKey {
    /** It travels with the call, and the router answers a little before it is over. */
    private static final Duration TIMEOUT = Duration.ofSeconds(5);
    /** Before a read is tried again that nobody could answer. */
    private static final Duration PAUSE = Duration.ofSeconds(1);

    private ReadKey() {}

    public static void main(String[] arguments) throws InvalidProtocolBufferException {
        if (arguments.length != 4) {
            System.err.println("usage: ReadKey ROUTER STORE KEY MAX_STALENESS_MS");
            System.exit(1);
        }
        try {
            readTwice(arguments[0], arguments[1], arguments[2], Long.parseLong(arguments[3]));
        } catch (StatusRuntimeException failure) {
            System.err.println(explained(failure));
            System.exit(1);
        }
    }

    private static void readTwice(String router, String store, String key, long maxStalenessMs)
            throws InvalidProtocolBufferException {
        ManagedChannel channel = Grpc.newChannelBuilder(router, InsecureChannelCredentials.create()).build();
        try {
            QueryServiceBlockingStub service = QueryServiceGrpc.newBlockingStub(channel);
            Freshness bound = Freshness.newBuilder().setMaxStalenessMs(maxStalenessMs).build();
            ReplicaStamp seen = read(service, store, key, bound).getReplica();
            // The replica that answers next has reached this position, or waits for it: reads don't go back in time.
            StorePosition position = StorePosition.newBuilder()
                    .setStore(store)
                    .setPartition(seen.getPartition())
                    .setPosition(seen.getPosition())
                    .build();
            Positions atLeast = Positions.newBuilder().addPositions(position).build();
            read(service, store, key, bound.toBuilder().setAtLeast(atLeast).build());
        } finally {
            channel.shutdownNow();
        }
    }

    /** Reads a key once and prints the answer and who gave it. */
    private static GetResponse read(QueryServiceBlockingStub service, String store, String key, Freshness freshness)
            throws InvalidProtocolBufferException {
        GetRequest request = GetRequest.newBuilder()
                .setStore(store)
                .setKey(Key.newBuilder().setText(key))
                .setFreshness(freshness)
                .build();
        GetResponse answer = service.withDeadlineAfter(TIMEOUT).get(request);
        String value = answer.getFound()
                ? JsonFormat.printer().omittingInsignificantWhitespace().print(answer.getValue())
                : "not there";
        ReplicaStamp replica = answer.getReplica();
        System.out.printf("%s: %s%n", key, value);
        System.out.printf("  from %s as %s, at position %d, %d ms stale%n",
                replica.getHost().getInstanceId(), replica.getRole(), replica.getPosition(), replica.getStalenessMs());
        return answer;
    }

    /** Says why a read failed, why each replica could not answer it, and whether to send it again. */
    private static String explained(StatusRuntimeException failure) throws InvalidProtocolBufferException {
        // Without a reason it is no router's failure but the connection's, and the code says enough.
        Code code = failure.getStatus().getCode();
        String reason = code.name();
        StringBuilder candidates = new StringBuilder();
        Duration delay = code == Code.UNAVAILABLE || code == Code.DEADLINE_EXCEEDED ? PAUSE : Duration.ZERO;
        for (Any detail : StatusProto.fromThrowable(failure).getDetailsList()) {
            if (detail.is(LookupError.class)) {
                LookupError error = detail.unpack(LookupError.class);
                reason = error.getReason().name();
                for (Candidate candidate : error.getCandidatesList()) {
                    String node = candidate.getHost().getInstanceId();
                    candidates.append("%n  %s: %s".formatted(node, candidate.getReason()));
                }
            } else if (detail.is(RetryInfo.class)) {
                delay = Duration.ofMillis(Durations.toMillis(detail.unpack(RetryInfo.class).getRetryDelay()));
            }
        }
        String advice = delay.isZero() ? "would fail again" : "may be sent again after " + delay.toMillis() + " ms";
        return "%s: %s%s%n%s".formatted(reason, failure.getStatus().getDescription(), candidates, advice);
    }
}
