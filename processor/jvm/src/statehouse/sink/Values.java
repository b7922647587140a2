package statehouse.sink;

/** Judges values as processor/sink/value_check.py does: a store must not hold what no door shows. */
final class Values {
    static final String REASON = "unreadable_value";

    private static final int KEY_SHOWN_MAX = 200;
    private static final int DETAIL_MAX = 1_000;

    private Values() {}

    /** Returns the detail of a dead letter if the output's readers can't decode the value; null if they can. */
    static String problem(Target.Output output, byte[] key, byte[] value) {
        try {
            check(output.serde(), value);
            return null;
        } catch (Unreadable error) {
            String shown = key == null ? "" : Text.shown(key);
            shown = shown.substring(0, Math.min(shown.length(), KEY_SHOWN_MAX));
            String detail =
                    "store '%s', key '%s': the value is no %s: %s"
                            .formatted(output.store(), shown, output.serde(), error.getMessage());
            return detail.substring(0, Math.min(detail.length(), DETAIL_MAX));
        }
    }

    /** Whether a serde can decode a value. For tests that compare it with Python's. */
    public static boolean isReadable(String serde, byte[] value) {
        try {
            check(serde, value);
            return true;
        } catch (Unreadable error) {
            return false;
        }
    }

    private static void check(String serde, byte[] value) throws Unreadable {
        if (value == null) {
            return; // it deletes
        }
        switch (serde) {
            case "json" -> JsonText.check(value);
            case "string" -> Text.strict(value);
            case "long", "double" -> {
                if (value.length != 8) {
                    throw new Unreadable(value.length + " bytes where 8 are expected");
                }
            }
            default -> {} // plug-ins judge for themselves, and the others take any bytes
        }
    }
}
