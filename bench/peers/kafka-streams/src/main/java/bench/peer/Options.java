package bench.peer;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;

/**
 * The command line: {@code --name value} pairs.
 *
 * @param standbys num.standby.replicas.
 * @param caching whether the store has a record cache (on is Kafka Streams' default).
 * @param directExecutor serve lookups on the threads that read the network, without a hand-over to a pool.
 * @param maxLag records that a copy may be behind and still answer.
 * @param bank keep the state of a bank, exactly once, and show what is committed.
 */
record Options(
        String bootstrap,
        String applicationId,
        String instanceId,
        String topic,
        String stateDir,
        int port,
        int standbys,
        int streamThreads,
        boolean caching,
        long commitIntervalMs,
        int sessionTimeoutMs,
        boolean directExecutor,
        long maxLag,
        boolean bank) {
    private static final Map<String, String> DEFAULTS = Map.of(
            "standbys", "1",
            "stream-threads", "1",
            "caching", "on",
            "commit-interval-ms", "30000",
            "session-timeout-ms", "10000",
            "executor", "default",
            "max-lag", "10000",
            "topology", "latest");
    private static final Set<String> REQUIRED =
            Set.of("bootstrap", "application-id", "instance-id", "topic", "state-dir", "port");

    static Options parse(final String[] args) {
        final Map<String, String> given = new HashMap<>(DEFAULTS);
        for (int at = 0; at < args.length; at += 2) {
            final String name = args[at].startsWith("--") ? args[at].substring(2) : "";
            if (at + 1 == args.length || !(DEFAULTS.containsKey(name) || REQUIRED.contains(name))) {
                throw new IllegalArgumentException("not an option with a value: " + args[at]);
            }
            given.put(name, args[at + 1]);
        }
        for (final String name : REQUIRED) {
            if (!given.containsKey(name)) {
                throw new IllegalArgumentException("--" + name + " is missing");
            }
        }
        return new Options(
                given.get("bootstrap"),
                given.get("application-id"),
                given.get("instance-id"),
                given.get("topic"),
                given.get("state-dir"),
                Integer.parseInt(given.get("port")),
                Integer.parseInt(given.get("standbys")),
                Integer.parseInt(given.get("stream-threads")),
                oneOf(given, "caching", "on", "off"),
                Long.parseLong(given.get("commit-interval-ms")),
                Integer.parseInt(given.get("session-timeout-ms")),
                oneOf(given, "executor", "direct", "default"),
                Long.parseLong(given.get("max-lag")),
                oneOf(given, "topology", "bank", "latest"));
    }

    private static boolean oneOf(
            final Map<String, String> given, final String name, final String yes, final String no) {
        final String value = given.get(name);
        if (!value.equals(yes) && !value.equals(no)) {
            throw new IllegalArgumentException("--" + name + " is " + yes + " or " + no + ", not " + value);
        }
        return value.equals(yes);
    }
}
