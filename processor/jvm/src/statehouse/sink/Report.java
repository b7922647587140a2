package statehouse.sink;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.TopicPartition;

/** What a task tells the driver: counts (processor/sink/counts.py), and the ends of what it has committed. */
final class Report {
    static final String CHANGELOG = "changelog";
    static final String TOMBSTONE = "tombstone";
    static final String SKIPPED = "skipped";
    static final String CLAIMED = "claimed";
    static final String RETRIED = "retried";
    static final String BYTES = "bytes";
    static final String SAVED = "saved";
    static final String EARLY = "early";

    private static final ObjectMapper JSON = new ObjectMapper();

    private record Kind(String output, String kind) {}

    private final Map<Kind, Long> counts = new LinkedHashMap<>();
    private final List<Object> ends = new ArrayList<>();
    private int unread;

    /** Counts records of an output, "" for the whole query. */
    void count(String output, String kind, long number) {
        counts.merge(new Kind(output, kind), number, Long::sum);
    }

    /** Takes the offset behind the last record that a transaction wrote to a partition. */
    void end(TopicPartition at, long offset) {
        ends.add(List.of(at.topic(), at.partition(), offset));
    }

    /** Takes the number of dead letters without the bytes of their source record. */
    void unread(int number) {
        unread += number;
    }

    void add(Report other) {
        other.counts.forEach((kind, number) -> counts.merge(kind, number, Long::sum));
        ends.addAll(other.ends);
        unread += other.unread;
    }

    String text() {
        List<Object> counted = new ArrayList<>();
        counts.forEach((kind, number) -> counted.add(List.of(kind.output(), kind.kind(), number)));
        try {
            return JSON.writeValueAsString(Map.of("counts", counted, "ends", ends, "unread", unread));
        } catch (JsonProcessingException error) {
            throw new IllegalStateException(error);
        }
    }
}
