package statehouse.sink;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The target of a query's batches, as `SinkTarget.described` of processor/sink/protocol.py writes it. */
public final class Target implements Serializable {
    private static final ObjectMapper JSON = new ObjectMapper();

    /** An output; `serde` judges its values, none if it is empty. */
    record Output(String name, String topic, int partitions, boolean isCached, String store, String serde)
            implements Serializable {
        boolean isStore() {
            return !store.isEmpty();
        }
    }

    /** The description itself: equal targets have equal ones. */
    final String text;

    final HashMap<String, String> clients = new HashMap<>();
    final ArrayList<Output> outputs = new ArrayList<>();
    final String applicationId;
    final String query;
    final String deadLettersTopic;
    final int deadLettersPartitions;
    final String markerGroup;
    final String markerTopic;
    final int partitions;
    final int transactionTimeoutMs;
    final int writeTimeoutMs;

    private Target(String text, JsonNode json) {
        this.text = text;
        JsonNode options = json.get("clients");
        options.fieldNames().forEachRemaining(name -> clients.put(name, options.get(name).asText()));
        for (JsonNode each : json.get("outputs")) {
            outputs.add(
                    new Output(
                            each.get("name").asText(),
                            each.get("topic").asText(),
                            each.get("partitions").asInt(),
                            each.get("cached").asBoolean(),
                            each.get("store").asText(),
                            each.get("serde").asText()));
        }
        applicationId = json.get("application_id").asText();
        query = json.get("query").asText();
        deadLettersTopic = json.get("dead_letters_topic").asText();
        deadLettersPartitions = json.get("dead_letters_partitions").asInt();
        markerGroup = json.get("marker_group").asText();
        markerTopic = json.get("marker_topic").asText();
        partitions = json.get("partitions").asInt();
        transactionTimeoutMs = json.get("transaction_timeout_ms").asInt();
        writeTimeoutMs = json.get("write_timeout_ms").asInt();
    }

    /** Reads a description. */
    public static Target of(String text) {
        try {
            return new Target(text, JSON.readTree(text));
        } catch (JsonProcessingException error) {
            throw new IllegalArgumentException(error);
        }
    }

    /** The transactional id of a sink partition; its last initialised producer is the only writer. */
    String transactionalId(int partition) {
        return applicationId + "-" + query + "-" + partition;
    }

    /** The options of a client of Kafka: those that Python names, and these. */
    Map<String, Object> client(String id, Object... namesAndValues) {
        Map<String, Object> options = new HashMap<>(clients);
        options.put("client.id", id);
        // As statehouse/kafka/clients.py has it: brokers restart, and data gets old while nobody reaches them.
        options.put("reconnect.backoff.ms", 200);
        options.put("reconnect.backoff.max.ms", 1000);
        options.put("socket.connection.setup.timeout.ms", 5000);
        options.put("request.timeout.ms", rpcTimeoutMs());
        for (int at = 0; at < namesAndValues.length; at += 2) {
            options.put((String) namesAndValues[at], namesAndValues[at + 1]);
        }
        return options;
    }

    /** How long one call of a client may take. */
    int rpcTimeoutMs() {
        return Math.min(10_000, writeTimeoutMs);
    }

    List<Output> outputs() {
        return outputs;
    }
}
