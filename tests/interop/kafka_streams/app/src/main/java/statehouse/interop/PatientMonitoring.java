package statehouse.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Duration;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.TimestampExtractor;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** Beats are counted by the minute; a closed minute with a fast pulse near a fever is an alert. */
final class PatientMonitoring {
    static final String PULSES = "pulse-events";
    static final String TEMPERATURES = "body-temp-events";
    static final String HIGH_PULSES = "high-pulses";
    static final String PULSE_COUNTS = "pulse-counts";
    static final String ALERTS = "alerts";
    private static final int HIGH_RATE = 100;
    private static final double FEVER_F = 100.4;
    private static final DateTimeFormatter ISO =
            DateTimeFormatter.ofPattern("uuuu-MM-dd'T'HH:mm:ss.SSS'Z'").withZone(ZoneOffset.UTC);

    private PatientMonitoring() {}

    static Topology topology(final int partitions) {
        final Serde<String> text = Serdes.String();
        final Serde<JsonNode> json = Json.serde();
        final Consumed<String, JsonNode> events = Consumed.with(text, json).withTimestampExtractor(new PayloadTime());
        final StreamsBuilder builder = new StreamsBuilder();
        final KStream<String, Long> highPulses = builder.stream(PULSES, events)
                .groupByKey(Grouped.with(text, json))
                .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofSeconds(60), Duration.ofSeconds(5)))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(PULSE_COUNTS)
                        .withKeySerde(text)
                        .withValueSerde(Serdes.Long())
                        .withRetention(Duration.ofHours(6))
                        .withCachingDisabled())
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                .toStream()
                .filter((minute, rate) -> rate >= HIGH_RATE)
                .map((minute, rate) -> KeyValue.pair(minute.key(), rate))
                .repartition(Repartitioned.with(text, Serdes.Long())
                        .withName(HIGH_PULSES)
                        .withNumberOfPartitions(partitions));
        final KStream<String, JsonNode> fevers = builder.stream(TEMPERATURES, events)
                .processValues(Timed::new)
                .filter((patient, measured) -> fahrenheit(measured) > FEVER_F);
        highPulses
                .join(
                        fevers,
                        PatientMonitoring::alert,
                        JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(60), Duration.ofSeconds(10)),
                        StreamJoined.with(text, Serdes.Long(), json).withStoreName("alerts-join"))
                .toTable(Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(ALERTS)
                        .withKeySerde(text)
                        .withValueSerde(text)
                        .withCachingDisabled());
        return builder.build();
    }

    private static double fahrenheit(final JsonNode measured) {
        final double degrees = measured.get("temperature").doubleValue();
        return measured.get("unit").textValue().equals("F") ? degrees : degrees * 9 / 5 + 32;
    }

    private static String alert(final long rate, final JsonNode measured) {
        return "{\"heart_rate\":" + rate + ",\"body_temp\":{\"timestamp\":" + Json.text(measured.get("timestamp"))
                + ",\"temperature\":" + Json.number(measured.get("temperature").doubleValue())
                + ",\"unit\":" + Json.text(measured.get("unit")) + "}}";
    }

    /** The time that an event says, else the stream time of its partition, else its record's. */
    private static final class PayloadTime implements TimestampExtractor {
        @Override
        public long extract(final ConsumerRecord<Object, Object> record, final long partitionTime) {
            final JsonNode said = ((JsonNode) record.value()).get("timestamp");
            if (said != null) {
                return Instant.parse(said.textValue()).toEpochMilli();
            }
            return partitionTime >= 0 ? partitionTime : record.timestamp();
        }
    }

    /** Writes into an event without a time the one that it was given. */
    private static final class Timed extends ContextualFixedKeyProcessor<String, JsonNode, JsonNode> {
        @Override
        public void process(final FixedKeyRecord<String, JsonNode> record) {
            final ObjectNode measured = record.value().deepCopy();
            if (!measured.has("timestamp")) {
                measured.put("timestamp", ISO.format(Instant.ofEpochMilli(record.timestamp())));
            }
            context().forward(record.withValue(measured));
        }
    }
}
