from processor.operators.recency import Update, bounded


def put(key: str, value: str | None = "v", at_ms: int | None = 1) -> Update:
    return Update(key.encode(), None if value is None else value.encode(), at_ms)


def keys(text: str) -> list[bytes]:
    return [key.encode() for key in text]


def test_the_least_recently_updated_is_displaced_with_a_tombstone():
    publish, kept = bounded(keys("abc"), [put("a", "again", 7), put("d", "new", 8)], 3)
    assert publish == [put("a", "again", 7), put("d", "new", 8), put("b", None, 8)]
    assert kept == keys("cad")


def test_a_key_displaced_and_updated_in_one_batch_nets_out():
    publish, kept = bounded(keys("ab"), [put("c"), put("a", "back")], 2)
    assert publish == [put("c"), put("a", "back"), put("b", None)]
    assert kept == keys("ca")


def test_a_key_that_comes_and_goes_in_one_batch_is_not_published():
    publish, kept = bounded([], [put("a"), put("b"), put("a", None)], 5)
    assert publish == [put("b")]
    assert kept == keys("b")
    publish, kept = bounded(keys("x"), [put("a"), put("b"), put("c")], 1)
    assert publish == [put("x", None), put("c")]
    assert kept == keys("c")


def test_a_tombstone_makes_room_and_one_for_an_absent_key_is_nothing():
    publish, kept = bounded(keys("ab"), [put("a", None), put("c"), put("nobody", None)], 2)
    assert publish == [put("a", None), put("c")]
    assert kept == keys("bc")


def test_a_smaller_bound_applies_with_the_next_update():
    publish, kept = bounded(keys("abcd"), [put("d")], 2)
    assert publish == [put("d"), put("a", None), put("b", None)]
    assert kept == keys("cd")
