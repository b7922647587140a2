package bench.peer;

import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;

/** Prints events on standard output, one JSON object per line. */
final class Say {
    private Say() {}

    static void line(final String event, final Map<String, ?> fields) {
        final String rest = new TreeMap<>(fields)
                .entrySet().stream()
                        .map(field -> ", \"" + field.getKey() + "\": " + json(field.getValue()))
                        .collect(Collectors.joining());
        System.out.println("{\"event\": \"" + event + "\"" + rest + "}");
    }

    private static String json(final Object value) {
        return value instanceof Number ? value.toString() : "\"" + value + "\"";
    }
}
