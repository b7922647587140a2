package statehouse.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;

/** Scores meet their player and product; the three best of each product are kept, ties go to the earlier record. */
final class Leaderboard {
    static final String SCORES = "score-events";
    static final String BY_PLAYER = "scores-by-player";
    static final String BY_PRODUCT = "scores-by-product";
    static final String STORE = "leader-boards";
    private static final int PLACES = 3;
    // The best comes first; then the place of the record in its topic, which no other one shares.
    private static final Comparator<JsonNode> BEST_FIRST = Comparator.<JsonNode>comparingDouble(
                    score -> -score.get("score").doubleValue())
            .thenComparingLong(score -> score.get("timestamp_ms").longValue())
            .thenComparingInt(score -> score.get("partition").intValue())
            .thenComparingLong(score -> score.get("offset").longValue());

    private Leaderboard() {}

    static Topology topology(final int partitions) {
        final Serde<String> text = Serdes.String();
        final Serde<JsonNode> json = Json.serde();
        final StreamsBuilder builder = new StreamsBuilder();
        final KTable<String, JsonNode> players = builder.table("players", Consumed.with(text, json));
        final GlobalKTable<String, JsonNode> products = builder.globalTable("products", Consumed.with(text, json));
        builder.stream(SCORES, Consumed.with(text, json))
                .processValues(Placed::new)
                .selectKey((key, score) -> score.get("player_id").asText())
                .repartition(Repartitioned.with(text, json).withName(BY_PLAYER).withNumberOfPartitions(partitions))
                .join(players, (score, player) -> named(score, "playerName", player))
                .join(
                        products,
                        (key, score) -> score.get("product_id").asText(),
                        (score, product) -> named(score, "gameName", product))
                .groupBy(
                        (key, score) -> score.get("product_id").asText(),
                        Grouped.with(text, json).withName(BY_PRODUCT))
                .aggregate(
                        Json.MAPPER::createArrayNode,
                        (product, score, best) -> withScore(best, score),
                        Materialized.with(text, json))
                .mapValues(
                        Leaderboard::rendered,
                        Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(STORE)
                                .withKeySerde(text)
                                .withValueSerde(text));
        return builder.build();
    }

    private static JsonNode named(final JsonNode score, final String field, final JsonNode row) {
        return ((ObjectNode) score.deepCopy()).set(field, row.get("name"));
    }

    private static JsonNode withScore(final JsonNode best, final JsonNode score) {
        final List<JsonNode> scores = new ArrayList<>();
        best.forEach(scores::add);
        scores.add(score);
        final ArrayNode kept = Json.MAPPER.createArrayNode();
        scores.stream().sorted(BEST_FIRST).limit(PLACES).forEach(kept::add);
        return kept;
    }

    private static String rendered(final JsonNode best) {
        final List<JsonNode> scores = new ArrayList<>();
        best.forEach(scores::add);
        return scores.stream().map(Leaderboard::entry).collect(Collectors.joining(",", "[", "]"));
    }

    private static String entry(final JsonNode score) {
        return "{\"playerId\":" + score.get("player_id") + ",\"productId\":" + score.get("product_id")
                + ",\"playerName\":" + Json.text(score.get("playerName"))
                + ",\"gameName\":" + Json.text(score.get("gameName"))
                + ",\"score\":" + Json.number(score.get("score").doubleValue()) + "}";
    }

    /** Notes with a score where its record stands. */
    private static final class Placed extends ContextualFixedKeyProcessor<String, JsonNode, JsonNode> {
        @Override
        public void process(final FixedKeyRecord<String, JsonNode> record) {
            final ObjectNode score = record.value().deepCopy();
            score.put("timestamp_ms", record.timestamp());
            context().recordMetadata().ifPresent(place -> {
                score.put("partition", place.partition());
                score.put("offset", place.offset());
            });
            context().forward(record.withValue(score));
        }
    }
}
