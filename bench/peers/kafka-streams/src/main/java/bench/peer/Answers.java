package bench.peer;

import bench.peer.proto.GetResponse;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** The common part of all lookups. */
final class Answers {
    /** How often the hosts of a partition are looked up before a lookup fails, and the pause between. */
    static final int ROUNDS_MAX = 3;

    private static final long ROUND_PAUSE_MS = 100;
    private static final GetResponse NOT_FOUND = GetResponse.getDefaultInstance();
    private static final ScheduledExecutorService TIMER = Executors.newSingleThreadScheduledExecutor(task -> {
        final Thread thread = new Thread(task, "next-round");
        thread.setDaemon(true);
        return thread;
    });

    private Answers() {}

    static GetResponse of(final byte[] value) {
        return value == null
                ? NOT_FOUND
                : GetResponse.newBuilder()
                        .setFound(true)
                        .setValue(UnsafeByteOperations.unsafeWrap(value))
                        .build();
    }

    static StatusRuntimeException unavailable(final String why) {
        return Status.UNAVAILABLE.withDescription(why).asRuntimeException();
    }

    /** Run a task a moment later, when a rebalance may be over. */
    static void later(final Runnable task) {
        TIMER.schedule(task, ROUND_PAUSE_MS, TimeUnit.MILLISECONDS);
    }
}
