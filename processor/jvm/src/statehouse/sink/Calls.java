package statehouse.sink;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;

/** Calls at the same time. */
final class Calls {
    private Calls() {}

    /** Waits for all calls of a pool; returns their results, or fails as the first of them that has failed. */
    static <T> List<T> results(ExecutorService pool, List<Future<T>> begun) {
        List<T> results = new ArrayList<>();
        Throwable failure = null;
        try {
            for (Future<T> each : begun) {
                try {
                    results.add(each.get());
                } catch (ExecutionException failed) {
                    failure = failure == null ? failed.getCause() : failure;
                }
            }
        } catch (InterruptedException interrupted) {
            pool.shutdownNow();
            Thread.currentThread().interrupt();
            failure = interrupted;
        }
        if (failure != null) {
            throw failure instanceof RuntimeException known ? known : new IllegalStateException(failure);
        }
        return results;
    }
}
