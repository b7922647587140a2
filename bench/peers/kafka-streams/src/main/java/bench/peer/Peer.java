package bench.peer;

import io.grpc.Server;
import io.grpc.netty.shaded.io.grpc.netty.NettyServerBuilder;
import java.net.InetSocketAddress;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.HostInfo;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * One instance of a Kafka Streams application. It keeps the latest value of each key of a topic in RocksDB, or the
 * state of a bank, with standbys. Any instance answers lookups over gRPC (KIP-535).
 *
 * <p>It prints its states and the progress of its restores on standard output, one JSON object per line. SIGTERM stops
 * it gracefully. As a static member (KIP-345) it keeps its tasks over a restart shorter than the session timeout.
 */
public final class Peer {
    static final String STORE = "latest";
    private static final String HOST = "127.0.0.1";

    private Peer() {}

    public static void main(final String[] args) throws Exception {
        final Options options = Options.parse(args);
        final long begin = System.nanoTime();
        final KafkaStreams streams = new KafkaStreams(topology(options), config(options));
        final RestoreProgress restores = new RestoreProgress();
        streams.setGlobalStateRestoreListener(restores);
        streams.setUncaughtExceptionHandler(failure -> StreamThreadExceptionResponse.REPLACE_THREAD);
        streams.setStateListener((now, before) -> Say.line(
                "state", Map.of("state", now.name(), "seconds", (System.nanoTime() - begin) / 1e9)));

        final LocalStores stores = new LocalStores(streams, partitionCount(options), options.maxLag());
        final HostInfo self = new HostInfo(HOST, options.port());
        final Instances instances = new Instances(options.directExecutor());
        final Routes routes = new Routes(streams, self, stores.partitionCount());
        final NettyServerBuilder builder = NettyServerBuilder.forAddress(new InetSocketAddress(HOST, options.port()))
                .addService(new PeerService(
                        new Gets(stores, routes, instances),
                        new Batches(stores, routes, instances),
                        new Scans(stores, routes, instances),
                        new StatusReport(streams, stores, restores)));
        if (options.directExecutor()) {
            builder.directExecutor();
        }
        final Server server = builder.build();

        final CountDownLatch ended = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            server.shutdown();
            stores.close();
            streams.close(Duration.ofSeconds(30));
            awaitEnd(server);
            instances.close();
            Say.line("ended", Map.of());
            ended.countDown();
        }));
        streams.start();
        server.start();
        ended.await();
    }

    private static Topology topology(final Options options) {
        if (options.bank()) {
            return Bank.topology(options.topic());
        }
        final Materialized<String, byte[], KeyValueStore<Bytes, byte[]>> store =
                Materialized.<String, byte[], KeyValueStore<Bytes, byte[]>>as(STORE)
                        .withKeySerde(Serdes.String())
                        .withValueSerde(Serdes.ByteArray());
        final StreamsBuilder builder = new StreamsBuilder();
        builder.table(
                options.topic(),
                Consumed.with(Serdes.String(), Serdes.ByteArray()),
                options.caching() ? store.withCachingEnabled() : store.withCachingDisabled());
        return builder.build();
    }

    private static Properties config(final Options options) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, options.applicationId());
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.bootstrap());
        config.put(StreamsConfig.APPLICATION_SERVER_CONFIG, HOST + ":" + options.port());
        config.put(StreamsConfig.STATE_DIR_CONFIG, options.stateDir());
        config.put(StreamsConfig.NUM_STANDBY_REPLICAS_CONFIG, options.standbys());
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, options.streamThreads());
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, options.commitIntervalMs());
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        // Off by default: a crashed instance keeps its stores, and reads what it lacks (KIP-892).
        config.put(StreamsConfig.TRANSACTIONAL_STATE_STORES_CONFIG, true);
        if (options.bank()) {
            // Money is counted once, and what isn't committed isn't shown.
            config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
            config.put(
                    StreamsConfig.DEFAULT_INTERACTIVE_QUERY_ISOLATION_LEVEL_CONFIG,
                    IsolationLevel.READ_COMMITTED.toString());
        }
        config.put(consumer(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        config.put(consumer(ConsumerConfig.GROUP_INSTANCE_ID_CONFIG), options.instanceId());
        config.put(consumer(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG), options.sessionTimeoutMs());
        config.put(consumer(ConsumerConfig.HEARTBEAT_INTERVAL_MS_CONFIG), options.sessionTimeoutMs() / 10);
        // Restores read larger pieces than processing does: nobody waits for a single record of a restore.
        config.put(restore(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 10_000);
        config.put(restore(ConsumerConfig.MAX_PARTITION_FETCH_BYTES_CONFIG), 8 * 1024 * 1024);
        config.put(restore(ConsumerConfig.RECEIVE_BUFFER_CONFIG), 1024 * 1024);
        return config;
    }

    private static String consumer(final String name) {
        return StreamsConfig.mainConsumerPrefix(name);
    }

    private static String restore(final String name) {
        return StreamsConfig.restoreConsumerPrefix(name);
    }

    private static int partitionCount(final Options options) throws Exception {
        try (Admin admin = Admin.create(Map.of(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, options.bootstrap()))) {
            return admin.describeTopics(List.of(options.topic()))
                    .topicNameValues()
                    .get(options.topic())
                    .get()
                    .partitions()
                    .size();
        }
    }

    private static void awaitEnd(final Server server) {
        try {
            if (!server.awaitTermination(5, TimeUnit.SECONDS)) {
                server.shutdownNow();
            }
        } catch (final InterruptedException interrupted) {
            server.shutdownNow();
        }
    }
}
