package statehouse.interop;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;

/** JSON as values of records, and numbers as our stores write them. */
final class Json {
    static final ObjectMapper MAPPER = new ObjectMapper();
    // Beyond it doubles are whole numbers anyway, and their shortest form is the one with an exponent.
    private static final double PLAIN_LIMIT = 1e16;

    private Json() {}

    static Serde<JsonNode> serde() {
        return Serdes.serdeFrom((topic, node) -> node == null ? null : bytes(node), (topic, data) -> node(data));
    }

    static String text(final JsonNode node) {
        try {
            return MAPPER.writeValueAsString(node);
        } catch (final JsonProcessingException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    /** A double's text: whole ones without a fraction. */
    static String number(final double value) {
        final boolean isWhole = value == Math.rint(value) && Math.abs(value) < PLAIN_LIMIT;
        return isWhole ? Long.toString((long) value) : Double.toString(value);
    }

    private static byte[] bytes(final JsonNode node) {
        try {
            return MAPPER.writeValueAsBytes(node);
        } catch (final JsonProcessingException failure) {
            throw new UncheckedIOException(failure);
        }
    }

    private static JsonNode node(final byte[] data) {
        if (data == null) {
            return null;
        }
        try {
            return MAPPER.readTree(data);
        } catch (final IOException failure) {
            throw new UncheckedIOException(failure);
        }
    }
}
