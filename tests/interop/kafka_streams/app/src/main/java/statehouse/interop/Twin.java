package statehouse.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.IntFunction;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.state.BuiltInDslStoreSuppliers;
import org.apache.kafka.streams.state.KeyValueIterator;

/**
 * Runs a topology that our examples have too.
 *
 * <p>{@code run TOPOLOGY BOOTSTRAP APPLICATION_ID PARTITIONS STATE_DIR MAX_TASK_IDLE_MS} processes what is in the source
 * topics of a broker. It ends once all of it is committed: the stores are in their changelogs then.
 *
 * <p>{@code drive TOPOLOGY STATE_DIR RECORDS STORES} pipes the records of a file one by one through a task for each
 * partition, without a broker, and writes down its stores. The file has JSON lines: partition, topic, key, value,
 * timestamp.
 */
public final class Twin {
    private Twin() {}

    public static void main(final String[] args) throws Exception {
        final Example example = Example.valueOf(args[1]);
        switch (args[0]) {
            case "run" -> run(example, args[2], args[3], Integer.parseInt(args[4]), args[5], args[6]);
            case "drive" -> drive(example, args[2], Path.of(args[3]), Path.of(args[4]));
            default -> throw new IllegalArgumentException("no such mode: " + args[0]);
        }
    }

    /** The topologies; sources, and the topics between in the order in which they feed one another. */
    private enum Example {
        LEADERBOARD(
                Leaderboard::topology,
                List.of(Leaderboard.SCORES, "players"),
                List.of(Leaderboard.BY_PLAYER + "-repartition", Leaderboard.BY_PRODUCT + "-repartition")),
        PATIENT_MONITORING(
                PatientMonitoring::topology,
                List.of(PatientMonitoring.PULSES, PatientMonitoring.TEMPERATURES),
                List.of(PatientMonitoring.HIGH_PULSES + "-repartition")),
        FOREIGN_KEY_JOIN(
                ForeignKeyJoin::topology,
                List.of(ForeignKeyJoin.PATIENTS, ForeignKeyJoin.WARDS),
                List.of(
                        ForeignKeyJoin.INNER + "-subscription-registration-topic",
                        ForeignKeyJoin.LEFT + "-subscription-registration-topic",
                        ForeignKeyJoin.INNER + "-subscription-response-topic",
                        ForeignKeyJoin.LEFT + "-subscription-response-topic"));

        private final IntFunction<Topology> topology;
        private final List<String> sources;
        private final List<String> between;

        Example(final IntFunction<Topology> topology, final List<String> sources, final List<String> between) {
            this.topology = topology;
            this.sources = sources;
            this.between = between;
        }
    }

    private static void run(
            final Example example,
            final String bootstrap,
            final String applicationId,
            final int partitions,
            final String stateDir,
            final String maxTaskIdleMs)
            throws Exception {
        final Properties config = config(applicationId, bootstrap, stateDir);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 500);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        config.put(StreamsConfig.MAX_TASK_IDLE_MS_CONFIG, maxTaskIdleMs);
        if (example == Example.FOREIGN_KEY_JOIN) {
            // With a cache a right row that is written and deleted between two commits is joined with left rows that
            // read it from the cache, and never withdrawn from them: the flush sees no change (docs/differences.md).
            config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        }
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        try (Admin admin = Admin.create(Map.of(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap));
                KafkaStreams streams = new KafkaStreams(example.topology.apply(partitions), config)) {
            streams.start();
            final Committed committed = new Committed(admin, streams, applicationId);
            committed.await(example.sources);
            for (final String name : example.between) {
                committed.await(List.of(applicationId + "-" + name));
            }
        }
    }

    private static void drive(final Example example, final String stateDir, final Path records, final Path stores)
            throws IOException {
        final Map<Integer, TopologyTestDriver> tasks = new TreeMap<>();
        try (BufferedWriter out = Files.newBufferedWriter(stores, StandardCharsets.UTF_8)) {
            for (final String line : Files.readAllLines(records)) {
                final JsonNode record = Json.MAPPER.readTree(line);
                final int partition = record.get("partition").intValue();
                tasks.computeIfAbsent(partition, number -> task(example, stateDir + "/" + number))
                        .createInputTopic(record.get("topic").textValue(), new StringSerializer(), new StringSerializer())
                        .pipeInput(
                                record.get("key").textValue(),
                                record.get("value").textValue(),
                                Instant.ofEpochMilli(record.get("timestamp").longValue()));
            }
            for (final TopologyTestDriver task : tasks.values()) {
                switch (example) {
                    case LEADERBOARD -> dump(out, task, Leaderboard.STORE);
                    case PATIENT_MONITORING -> {
                        dump(out, task, PatientMonitoring.ALERTS);
                        dumpWindows(out, task, PatientMonitoring.PULSE_COUNTS);
                    }
                    case FOREIGN_KEY_JOIN -> {
                        dumpJson(out, task, ForeignKeyJoin.INNER);
                        dumpJson(out, task, ForeignKeyJoin.LEFT);
                    }
                    default -> throw new IllegalArgumentException("no stores are known of " + example);
                }
            }
        } finally {
            tasks.values().forEach(TopologyTestDriver::close);
        }
    }

    private static TopologyTestDriver task(final Example example, final String stateDir) {
        final Properties config = config("twin", "unused:1", stateDir);
        // The driver commits after every record, and so would write stores on disk.
        config.put(
                StreamsConfig.DSL_STORE_SUPPLIERS_CLASS_CONFIG,
                BuiltInDslStoreSuppliers.InMemoryDslStoreSuppliers.class);
        return new TopologyTestDriver(example.topology.apply(1), config);
    }

    private static Properties config(final String applicationId, final String bootstrap, final String stateDir) {
        final Properties config = new Properties();
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, applicationId);
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(StreamsConfig.STATE_DIR_CONFIG, stateDir);
        return config;
    }

    private static void dump(final BufferedWriter out, final TopologyTestDriver task, final String store)
            throws IOException {
        try (KeyValueIterator<String, String> entries =
                task.<String, String>getKeyValueStore(store).all()) {
            while (entries.hasNext()) {
                final var entry = entries.next();
                write(out, store, entry.key, Json.MAPPER.readTree(entry.value), null);
            }
        }
    }

    private static void dumpJson(final BufferedWriter out, final TopologyTestDriver task, final String store)
            throws IOException {
        try (KeyValueIterator<String, JsonNode> entries =
                task.<String, JsonNode>getKeyValueStore(store).all()) {
            while (entries.hasNext()) {
                final var entry = entries.next();
                write(out, store, entry.key, entry.value, null);
            }
        }
    }

    private static void dumpWindows(final BufferedWriter out, final TopologyTestDriver task, final String store)
            throws IOException {
        try (var entries = task.<String, Long>getWindowStore(store).all()) {
            while (entries.hasNext()) {
                final var entry = entries.next();
                final JsonNode count = Json.MAPPER.getNodeFactory().numberNode(entry.value);
                write(out, store, entry.key.key(), count, entry.key.window().start());
            }
        }
    }

    private static void write(
            final BufferedWriter out, final String store, final String key, final JsonNode value, final Long start)
            throws IOException {
        final ObjectNode line = Json.MAPPER.createObjectNode().put("store", store).put("key", key);
        out.write(Json.text(line.put("start", start).set("value", value)) + "\n");
    }
}
