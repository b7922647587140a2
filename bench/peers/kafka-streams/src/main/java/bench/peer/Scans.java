package bench.peer;

import bench.peer.proto.Entry;
import bench.peer.proto.ScanPage;
import bench.peer.proto.ScanRequest;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.stream.IntStream;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.errors.InvalidStateStoreException;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.KeyValueIterator;

/** Ranges of keys in order: entries of local partitions, merged with those that the other instances send. */
final class Scans {
    private static final int PAGE_ENTRIES = 500;
    private static final int AT_ONCE_MAX = 64;

    private final LocalStores stores;
    private final Routes routes;
    private final Instances instances;
    // Scans block on disks and on other instances; the network's threads must not block.
    private final ExecutorService executor = Executors.newCachedThreadPool(task -> {
        final Thread thread = new Thread(task, "scan");
        thread.setDaemon(true);
        return thread;
    });
    private final Semaphore free = new Semaphore(AT_ONCE_MAX);

    Scans(final LocalStores stores, final Routes routes, final Instances instances) {
        this.stores = stores;
        this.routes = routes;
        this.instances = instances;
    }

    void scan(final ScanRequest request, final StreamObserver<ScanPage> caller) {
        if (request.getLimit() < 1) {
            caller.onError(Status.INVALID_ARGUMENT
                    .withDescription("limit must be 1 at least")
                    .asRuntimeException());
        } else if (!free.tryAcquire()) {
            caller.onError(Status.RESOURCE_EXHAUSTED
                    .withDescription(AT_ONCE_MAX + " scans are under way")
                    .asRuntimeException());
        } else {
            executor.execute(Context.current().wrap(() -> {
                try {
                    send(request, caller);
                } catch (final InvalidStateStoreException notHere) {
                    caller.onError(Answers.unavailable(notHere.getMessage()));
                } catch (final StatusRuntimeException failure) {
                    caller.onError(failure);
                } finally {
                    free.release();
                }
            }));
        }
    }

    private void send(final ScanRequest request, final StreamObserver<ScanPage> caller) {
        final List<KeyValueIterator<String, byte[]>> opened = new ArrayList<>();
        try {
            final List<Iterator<Entry>> parts = new ArrayList<>();
            final Collection<Integer> here = request.getPartitionsCount() > 0
                    ? request.getPartitionsList()
                    : others(request, parts);
            for (final int partition : here) {
                final KeyValueIterator<String, byte[]> range = stores.copy(partition)
                        .range(orNull(request.getFrom()), orNull(request.getTo()));
                opened.add(range);
                parts.add(entries(range));
            }
            ScanPage.Builder page = ScanPage.newBuilder();
            final Iterator<Entry> merged = merge(parts);
            for (int left = request.getLimit(); left > 0 && merged.hasNext(); left--) {
                page.addEntries(merged.next());
                if (page.getEntriesCount() == PAGE_ENTRIES) {
                    caller.onNext(page.build());
                    page = ScanPage.newBuilder();
                }
            }
            if (page.getEntriesCount() > 0) {
                caller.onNext(page.build());
            }
        } finally {
            opened.forEach(KeyValueIterator::close);
        }
        caller.onCompleted();
    }

    /** Ask the other instances for their partitions; return the partitions to read here. */
    private List<Integer> others(final ScanRequest request, final List<Iterator<Entry>> parts) {
        final List<Integer> here = new ArrayList<>();
        final Map<HostInfo, List<Integer>> elsewhere = new HashMap<>();
        IntStream.range(0, stores.partitionCount()).forEach(partition -> {
            final HostInfo host = routes.hosts(partition).stream()
                    .findFirst()
                    .orElseThrow(() -> Answers.unavailable("nobody is known to hold partition " + partition));
            (routes.isSelf(host) ? here : elsewhere.computeIfAbsent(host, other -> new ArrayList<>())).add(partition);
        });
        elsewhere.forEach((host, partitions) -> parts.add(pages(instances.blockingAt(host)
                .scan(request.toBuilder().addAllPartitions(partitions).build()))));
        return here;
    }

    private static Iterator<Entry> merge(final List<Iterator<Entry>> parts) {
        final PriorityQueue<Head> heads = new PriorityQueue<>(Comparator.comparing(head -> head.entry.getKey()));
        parts.stream().filter(Iterator::hasNext).forEach(part -> heads.add(new Head(part.next(), part)));
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return !heads.isEmpty();
            }

            @Override
            public Entry next() {
                final Head head = heads.remove();
                if (head.rest.hasNext()) {
                    heads.add(new Head(head.rest.next(), head.rest));
                }
                return head.entry;
            }
        };
    }

    private record Head(Entry entry, Iterator<Entry> rest) {}

    private static Iterator<Entry> entries(final Iterator<KeyValue<String, byte[]>> range) {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                return range.hasNext();
            }

            @Override
            public Entry next() {
                final KeyValue<String, byte[]> found = range.next();
                return Entry.newBuilder()
                        .setKey(found.key)
                        .setValue(UnsafeByteOperations.unsafeWrap(found.value))
                        .build();
            }
        };
    }

    private static Iterator<Entry> pages(final Iterator<ScanPage> pages) {
        return new Iterator<>() {
            private Iterator<Entry> page = List.<Entry>of().iterator();

            @Override
            public boolean hasNext() {
                while (!page.hasNext() && pages.hasNext()) {
                    page = pages.next().getEntriesList().iterator();
                }
                return page.hasNext();
            }

            @Override
            public Entry next() {
                return page.next();
            }
        };
    }

    private static String orNull(final String bound) {
        return bound.isEmpty() ? null : bound;
    }
}
