package statehouse.sink;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Which bytes are a JSON document: RFC 8259 in UTF-8, without what some readers can't take. The judge is `read_json` of
 * statehouse/serdes/json_documents.py, and tests hold both to the same documents.
 */
final class JsonText {
    private static final int MESSAGES_DEEP = 90;
    private static final int FEWEST_TOO_DEEP = MESSAGES_DEEP / 3;
    private static final int DIGITS_MAX = 4300; // Python reads no longer integer
    private static final int NESTED_MAX = 900; // nor what is nested about as deep as this
    private static final String TOO_DEEP = "it is nested too deep to be shown";

    private final String text;
    private final boolean isKept;
    private int at;
    private int depth;

    private JsonText(String text, boolean isKept) {
        this.text = text;
        this.isKept = isKept;
    }

    /** Fails if the bytes are no document. */
    static void check(byte[] data) throws Unreadable {
        String text = Text.strict(data);
        // Most documents are neither deep nor have halves of characters, by their text, and need no further look.
        boolean needsLook = text.contains("\\u") || opened(text) >= FEWEST_TOO_DEEP;
        JsonText reading = new JsonText(text, needsLook);
        reading.skipBlanks();
        Object document = reading.value();
        reading.skipBlanks();
        if (reading.at < text.length()) {
            throw reading.expected("the end");
        }
        if (needsLook) {
            look(document, MESSAGES_DEEP);
        }
    }

    private static int opened(String text) {
        int count = 0;
        for (int at = 0; at < text.length(); at++) {
            char each = text.charAt(at);
            if (each == '{' || each == '[') {
                count++;
            }
        }
        return count;
    }

    private static void look(Object document, int room) throws Unreadable {
        if (room < 0) {
            throw new Unreadable(TOO_DEEP);
        }
        if (document instanceof String string) {
            lookAtText(string);
        } else if (document instanceof List<?> list) {
            for (Object each : list) {
                look(each, room - 2);
            }
        } else if (document instanceof Map<?, ?> map) {
            for (Map.Entry<?, ?> each : map.entrySet()) {
                lookAtText((String) each.getKey());
                look(each.getValue(), room - 3);
            }
        }
    }

    private static void lookAtText(String string) throws Unreadable {
        for (int at = 0; at < string.length(); at++) {
            char each = string.charAt(at);
            if (Character.isHighSurrogate(each)
                    && at + 1 < string.length()
                    && Character.isLowSurrogate(string.charAt(at + 1))) {
                at++;
            } else if (Character.isSurrogate(each)) {
                throw new Unreadable("a text has half of a surrogate pair, which is no character");
            }
        }
    }

    /** Reads a value; returns it as far as it is looked at again: text, list or map. The last of equal names counts. */
    private Object value() throws Unreadable {
        switch (peek()) {
            case '{':
                return object();
            case '[':
                return list();
            case '"':
                return string();
            case 't':
                return word("true");
            case 'f':
                return word("false");
            case 'n':
                return word("null");
            default:
                number();
                return null;
        }
    }

    private Object object() throws Unreadable {
        Map<String, Object> found = isKept ? new HashMap<>() : null;
        for (boolean isOver = opens('}'); !isOver; isOver = closes('}')) {
            if (peek() != '"') {
                throw expected("a name in quotes");
            }
            String name = string();
            skipBlanks();
            if (peek() != ':') {
                throw expected("':'");
            }
            at++;
            skipBlanks();
            Object value = value();
            if (found != null) {
                found.put(name, value);
            }
        }
        return found;
    }

    private Object list() throws Unreadable {
        List<Object> found = isKept ? new ArrayList<>() : null;
        for (boolean isOver = opens(']'); !isOver; isOver = closes(']')) {
            Object value = value();
            if (found != null) {
                found.add(value);
            }
        }
        return found;
    }

    /** Takes an opening bracket; returns whether the closing one follows, and takes it. */
    private boolean opens(char closing) throws Unreadable {
        if (++depth > NESTED_MAX) {
            throw new Unreadable(TOO_DEEP);
        }
        at++;
        skipBlanks();
        return takes(closing);
    }

    /** Takes what follows an item: returns true if that is the closing bracket, false if a comma. */
    private boolean closes(char closing) throws Unreadable {
        skipBlanks();
        if (takes(closing)) {
            return true;
        }
        if (peek() != ',') {
            throw expected("',' or '" + closing + "'");
        }
        at++;
        skipBlanks();
        return false;
    }

    private boolean takes(char closing) {
        if (peek() != closing) {
            return false;
        }
        at++;
        depth--;
        return true;
    }

    private String string() throws Unreadable {
        at++;
        StringBuilder made = isKept ? new StringBuilder() : null;
        while (true) {
            char each = peek();
            if (each < ' ') {
                throw expected(at >= text.length() ? "the end of a text" : "no control character in a text");
            }
            at++;
            if (each == '"') {
                return made == null ? null : made.toString();
            }
            char read = each == '\\' ? escaped() : each;
            if (made != null) {
                made.append(read);
            }
        }
    }

    private char escaped() throws Unreadable {
        char kind = peek();
        at++;
        switch (kind) {
            case '"', '\\', '/':
                return kind;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                int number = 0;
                for (int digit = 0; digit < 4; digit++) {
                    int read = peek() < 128 ? Character.digit(peek(), 16) : -1;
                    if (read < 0) {
                        throw expected("four hexadecimal digits");
                    }
                    number = number * 16 + read;
                    at++;
                }
                return (char) number;
            default:
                at--;
                throw expected("an escape that JSON has");
        }
    }

    private void number() throws Unreadable {
        int from = at;
        if (peek() == '-') {
            at++;
        }
        int first = at;
        if (peek() == '0') {
            at++;
        } else {
            digits("a value");
        }
        int whole = at - first;
        boolean isFraction = false;
        if (peek() == '.' && isDigit(at + 1)) {
            isFraction = true;
            at++;
            digits("a digit");
        }
        if (peek() == 'e' || peek() == 'E') {
            int sign = at + 1 < text.length() && "+-".indexOf(text.charAt(at + 1)) >= 0 ? 1 : 0;
            if (isDigit(at + 1 + sign)) {
                isFraction = true;
                at += 1 + sign;
                digits("a digit");
            }
        }
        if (!isFraction && whole > DIGITS_MAX) {
            throw new Unreadable("an integer has more than " + DIGITS_MAX + " digits");
        }
        if (isFraction && Double.isInfinite(Double.parseDouble(text.substring(from, at)))) {
            String shown = text.substring(from, Math.min(at, from + 40));
            throw new Unreadable("the number " + shown + " is too large for a 64-bit float");
        }
    }

    private void digits(String what) throws Unreadable {
        if (!isDigit(at)) {
            throw expected(what);
        }
        while (isDigit(at)) {
            at++;
        }
    }

    private boolean isDigit(int place) {
        return place < text.length() && text.charAt(place) >= '0' && text.charAt(place) <= '9';
    }

    private Object word(String word) throws Unreadable {
        if (!text.startsWith(word, at)) {
            throw expected("a value");
        }
        at += word.length();
        return null;
    }

    private void skipBlanks() {
        while (at < text.length() && " \t\n\r".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    /** The next character; at the end one that nothing expects. */
    private char peek() {
        return at < text.length() ? text.charAt(at) : '\0';
    }

    private Unreadable expected(String what) {
        return new Unreadable("expected " + what + " at character " + at);
    }
}
