package statehouse.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.state.KeyValueStore;

/** Patients with the wards that they name: KIP-213's join, inner and left. */
final class ForeignKeyJoin {
    static final String PATIENTS = "patients";
    static final String WARDS = "wards";
    static final String INNER = "inner";
    static final String LEFT = "left";

    private ForeignKeyJoin() {}

    static Topology topology(final int partitions) {
        final Serde<String> text = Serdes.String();
        final Serde<JsonNode> json = Json.serde();
        final StreamsBuilder builder = new StreamsBuilder();
        final KTable<String, JsonNode> patients = builder.table(PATIENTS, Consumed.with(text, json));
        final KTable<String, JsonNode> wards = builder.table(WARDS, Consumed.with(text, json));
        patients.join(
                wards, ForeignKeyJoin::ward, ForeignKeyJoin::joined, TableJoined.as(INNER), store(INNER, text, json));
        patients.leftJoin(
                wards, ForeignKeyJoin::ward, ForeignKeyJoin::joined, TableJoined.as(LEFT), store(LEFT, text, json));
        return builder.build();
    }

    private static Materialized<String, JsonNode, KeyValueStore<Bytes, byte[]>> store(
            final String name, final Serde<String> text, final Serde<JsonNode> json) {
        return Materialized.<String, JsonNode, KeyValueStore<Bytes, byte[]>>as(name)
                .withKeySerde(text)
                .withValueSerde(json);
    }

    private static String ward(final JsonNode patient) {
        final JsonNode ward = patient.get("ward");
        return ward == null ? null : ward.textValue();
    }

    private static JsonNode joined(final JsonNode patient, final JsonNode ward) {
        final ObjectNode joined = Json.MAPPER.createObjectNode();
        joined.set("name", patient.get("name"));
        if (ward != null) {
            joined.set("ward", ward.get("ward_name"));
        }
        return joined;
    }
}
