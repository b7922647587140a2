package statehouse.sink;

import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;

/** Text and its bytes in UTF-8. */
final class Text {
    private Text() {}

    static byte[] encode(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    /** What can't be read shows as U+FFFD. */
    static String lenient(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }

    /** For people: if the bytes are no text, those that aren't ASCII show as \\xff. */
    static String shown(byte[] bytes) {
        try {
            return strict(bytes);
        } catch (Unreadable error) {
            StringBuilder made = new StringBuilder();
            for (byte each : bytes) {
                made.append(each < 0 ? "\\x%02x".formatted(each & 0xff) : String.valueOf((char) each));
            }
            return made.toString();
        }
    }

    /** Fails if the bytes are no text. */
    static String strict(byte[] bytes) throws Unreadable {
        try {
            return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(bytes)).toString();
        } catch (CharacterCodingException error) {
            throw new Unreadable("it is no text in UTF-8");
        }
    }
}
