package statehouse.sink;

/** A value that its store's readers couldn't decode; the message says why. Cheap: a backlog may have many. */
final class Unreadable extends Exception {
    Unreadable(String why) {
        super(why, null, false, false);
    }
}
