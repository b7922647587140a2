package statehouse.interop;

import java.io.BufferedWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreType;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.ReadOnlySessionStore;
import org.apache.kafka.streams.state.ReadOnlyWindowStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Counts the words of two topics of lines into every kind of store that has a changelog of its own layout. Waits until
 * all input is processed and committed. Then writes what interactive queries see to a file of JSON lines.
 *
 * <p>Input: {@code <application id>-lines} and {@code <application id>-replies}, values are words parted by a space.
 */
public final class WordStores {
    private static final String COUNTS = "counts";
    private static final String WINDOWS = "windows";
    private static final String SESSIONS = "sessions";
    private static final String JOIN = "join";
    private static final String RANGE = "-range";
    private static final List<String> JOIN_STORES = List.of(JOIN + "-this-join-store", JOIN + "-other-join-store");

    private static final Duration RETENTION = Duration.ofHours(1);
    private static final Duration WINDOW = Duration.ofMinutes(1);
    private static final Duration WINDOW_GRACE = Duration.ofMinutes(30);
    private static final Duration SESSION_GAP = Duration.ofSeconds(30);
    private static final Duration SESSION_GRACE = Duration.ofMinutes(20);
    // The join stores' retention is both sides of the difference and the grace: 30 minutes.
    private static final Duration JOIN_DIFFERENCE = Duration.ofMinutes(1);
    private static final Duration JOIN_GRACE = Duration.ofMinutes(28);

    private WordStores() {}

    /**
     * Arguments: bootstrap, application id, partitions of the stores, state directory, guarantee, dump file, and a range
     * of windows: lowest and highest key, earliest and latest start in epoch milliseconds, all inclusive.
     */
    public static void main(final String[] args) throws Exception {
        if (args.length != 10) {
            throw new IllegalArgumentException("ten arguments are due, not " + args.length);
        }
        final Range range = new Range(
                args[6],
                args[7],
                Instant.ofEpochMilli(Long.parseLong(args[8])),
                Instant.ofEpochMilli(Long.parseLong(args[9])));
        final String applicationId = args[1];
        final int partitions = Integer.parseInt(args[2]);
        final Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, applicationId);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[3]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, args[4]);
        config.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 100);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        config.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        config.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        config.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");

        try (Admin admin = Admin.create(Map.of(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]));
                KafkaStreams streams = new KafkaStreams(topology(applicationId, partitions), config)) {
            streams.start();
            final Committed committed = new Committed(admin, streams, applicationId);
            // In this order: once all lines are committed, nothing more comes into the topics between.
            committed.await(List.of(applicationId + "-lines", applicationId + "-replies"));
            committed.await(
                    List.of(applicationId + "-words-repartition", applicationId + "-answers-repartition"));
            dump(streams, partitions, Path.of(args[5]), range);
        }
    }

    private static Topology topology(final String applicationId, final int partitions) {
        final StreamsBuilder builder = new StreamsBuilder();
        final KStream<String, String> words = words(builder, applicationId + "-lines", "words", partitions);
        final KStream<String, String> answers = words(builder, applicationId + "-replies", "answers", partitions);
        final Grouped<String, String> grouped = Grouped.with(Serdes.String(), Serdes.String());
        words.groupByKey(grouped)
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as(COUNTS)
                        .withValueSerde(Serdes.Long()));
        // A cache in front of a window store answers with windows that its store has expired: there is none.
        words.groupByKey(grouped)
                .windowedBy(TimeWindows.ofSizeAndGrace(WINDOW, WINDOW_GRACE))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(WINDOWS)
                        .withValueSerde(Serdes.Long())
                        .withRetention(RETENTION)
                        .withCachingDisabled());
        // Without a cache every session that a later record merges has been in the changelog, and leaves a tombstone.
        words.groupByKey(grouped)
                .windowedBy(SessionWindows.ofInactivityGapAndGrace(SESSION_GAP, SESSION_GRACE))
                .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as(SESSIONS)
                        .withValueSerde(Serdes.Long())
                        .withRetention(RETENTION)
                        .withCachingDisabled());
        words.join(
                        answers,
                        (line, reply) -> line + " / " + reply,
                        JoinWindows.ofTimeDifferenceAndGrace(JOIN_DIFFERENCE, JOIN_GRACE),
                        StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String())
                                .withStoreName(JOIN))
                .foreach((word, pair) -> {});
        return builder.build();
    }

    /** Returns (word, its line) for each word of each line, placed by the word. */
    private static KStream<String, String> words(
            final StreamsBuilder builder, final String topic, final String name, final int partitions) {
        return builder.stream(topic, Consumed.with(Serdes.String(), Serdes.String()))
                .flatMap((key, line) -> Arrays.stream(line.split(" "))
                        .map(word -> KeyValue.pair(word, line))
                        .toList())
                .repartition(Repartitioned.with(Serdes.String(), Serdes.String())
                        .withName(name)
                        .withNumberOfPartitions(partitions));
    }

    /** A range of keys and of window starts, both ends inclusive. */
    private record Range(String lowest, String highest, Instant earliest, Instant latest) {}

    private static void dump(
            final KafkaStreams streams, final int partitions, final Path file, final Range range) throws IOException {
        try (BufferedWriter out = Files.newBufferedWriter(file, StandardCharsets.UTF_8)) {
            for (int partition = 0; partition < partitions; partition++) {
                final ReadOnlyKeyValueStore<String, Long> counts =
                        store(streams, COUNTS, partition, QueryableStoreTypes.keyValueStore());
                try (KeyValueIterator<String, Long> entries = counts.all()) {
                    while (entries.hasNext()) {
                        final KeyValue<String, Long> entry = entries.next();
                        write(out, COUNTS, partition, entry.key, null, entry.value);
                    }
                }
                final ReadOnlyWindowStore<String, Long> windows =
                        store(streams, WINDOWS, partition, QueryableStoreTypes.windowStore());
                dumpWindows(out, WINDOWS, partition, windows, range);
                final ReadOnlySessionStore<String, Long> sessions =
                        store(streams, SESSIONS, partition, QueryableStoreTypes.sessionStore());
                dumpWindowed(out, SESSIONS, partition, sessions.fetch(null, null));
                for (final String name : JOIN_STORES) {
                    final ReadOnlyWindowStore<String, String> join =
                            store(streams, name, partition, QueryableStoreTypes.windowStore());
                    dumpWindows(out, name, partition, join, range);
                }
            }
        }
    }

    private static <T> T store(
            final KafkaStreams streams, final String name, final int partition, final QueryableStoreType<T> type) {
        return streams.store(
                StoreQueryParameters.fromNameAndType(name, type).withPartition(partition));
    }

    /** Writes all windows, and those of the range once more under the store's name with RANGE. */
    private static <V> void dumpWindows(
            final BufferedWriter out,
            final String store,
            final int partition,
            final ReadOnlyWindowStore<String, V> windows,
            final Range range)
            throws IOException {
        dumpWindowed(out, store, partition, windows.all());
        final KeyValueIterator<Windowed<String>, V> ranged =
                windows.fetch(range.lowest, range.highest, range.earliest, range.latest);
        dumpWindowed(out, store + RANGE, partition, ranged);
    }

    private static <V> void dumpWindowed(
            final BufferedWriter out,
            final String store,
            final int partition,
            final KeyValueIterator<Windowed<String>, V> entries)
            throws IOException {
        try (entries) {
            while (entries.hasNext()) {
                final KeyValue<Windowed<String>, V> entry = entries.next();
                write(out, store, partition, entry.key.key(), entry.key, entry.value);
            }
        }
    }

    private static void write(
            final BufferedWriter out,
            final String store,
            final int partition,
            final String key,
            final Windowed<String> windowed,
            final Object value)
            throws IOException {
        out.write("{\"store\":" + quoted(store) + ",\"partition\":" + partition + ",\"key\":" + quoted(key));
        if (windowed != null) {
            out.write(",\"start\":" + windowed.window().start() + ",\"end\":" + windowed.window().end());
        }
        out.write(",\"value\":" + (value instanceof Long ? value : quoted(value.toString())) + "}\n");
    }

    /** A JSON string, in ASCII. */
    private static String quoted(final String text) {
        final StringBuilder quoted = new StringBuilder("\"");
        text.chars().forEach(unit -> {
            if (unit < ' ' || unit > '~' || unit == '"' || unit == '\\') {
                quoted.append(String.format("\\u%04x", unit));
            } else {
                quoted.append((char) unit);
            }
        });
        return quoted.append('"').toString();
    }
}
