package statehouse.sink;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Calls at the same time. They are of sink partitions, and mostly wait for the broker. */
final class Calls {
    private static final int THREADS_MAX = 8;

    private Calls() {}

    /** Makes all calls; returns their results, or fails, once all have ended, as the first that has failed. */
    static <T> List<T> all(List<Callable<T>> calls) {
        ExecutorService pool = Executors.newFixedThreadPool(Math.min(calls.size(), THREADS_MAX));
        Throwable failure = null;
        List<T> results = new ArrayList<>();
        try {
            for (Future<T> each : pool.invokeAll(calls)) {
                try {
                    results.add(each.get());
                } catch (ExecutionException failed) {
                    failure = failure == null ? failed.getCause() : failure;
                }
            }
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            failure = interrupted;
        } finally {
            pool.shutdownNow();
        }
        if (failure != null) {
            throw failure instanceof RuntimeException known ? known : new IllegalStateException(failure);
        }
        return results;
    }
}
