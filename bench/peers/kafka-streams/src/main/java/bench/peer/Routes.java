package bench.peer;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyQueryMetadata;
import org.apache.kafka.streams.state.HostInfo;

/** The hosts of each partition: the active's first, then the standbys'. */
final class Routes {
    private final KafkaStreams streams;
    private final HostInfo self;
    private final int partitionCount;

    Routes(final KafkaStreams streams, final HostInfo self, final int partitionCount) {
        this.streams = streams;
        this.self = self;
        this.partitionCount = partitionCount;
    }

    int partitionOf(final String key) {
        return Utils.toPositive(Utils.murmur2(key.getBytes(StandardCharsets.UTF_8))) % partitionCount;
    }

    boolean isSelf(final HostInfo host) {
        return self.equals(host);
    }

    /** Return the hosts that may answer, in the order to ask them; empty while they are unknown. */
    List<HostInfo> hosts(final int partition) {
        if (!streams.state().isRunningOrRebalancing()) {
            return List.of();
        }
        final KeyQueryMetadata found = streams.queryMetadataForKey(
                Peer.STORE, "", (topic, key, value, count) -> Optional.of(Set.of(partition)));
        if (found == null || found.equals(KeyQueryMetadata.NOT_AVAILABLE)) {
            return List.of();
        }
        final List<HostInfo> hosts = new ArrayList<>(1 + found.standbyHosts().size());
        if (!HostInfo.unavailable().equals(found.activeHost())) {
            hosts.add(found.activeHost());
        }
        hosts.addAll(found.standbyHosts());
        return hosts;
    }
}
