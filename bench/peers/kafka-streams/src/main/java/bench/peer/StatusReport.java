package bench.peer;

import bench.peer.proto.StatusResponse;
import bench.peer.proto.StorePartition;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.streams.KafkaStreams;

/** Reports the copies that this instance holds, and their positions and lags. */
final class StatusReport {
    private final KafkaStreams streams;
    private final LocalStores stores;
    private final RestoreProgress restores;

    StatusReport(final KafkaStreams streams, final LocalStores stores, final RestoreProgress restores) {
        this.streams = streams;
        this.stores = stores;
        this.restores = restores;
    }

    StatusResponse now() {
        final StatusResponse.Builder status = StatusResponse.newBuilder()
                .setState(streams.state().name())
                .setRestoredRecords(restores.records())
                .setRestoringS(restores.seconds());
        if (streams.state().isRunningOrRebalancing()) {
            final Set<Integer> active = streams.metadataForLocalThreads().stream()
                    .flatMap(thread -> thread.activeTasks().stream())
                    .map(task -> task.taskId().partition())
                    .collect(Collectors.toSet());
            IntStream.range(0, stores.partitionCount())
                    .forEach(partition -> stores.lag(partition)
                            .ifPresent(lag -> status.addPartitions(StorePartition.newBuilder()
                                    .setPartition(partition)
                                    .setActive(active.contains(partition))
                                    .setLag(lag.offsetLag())
                                    .setPosition(lag.currentOffsetPosition()))));
        }
        return status.build();
    }
}
