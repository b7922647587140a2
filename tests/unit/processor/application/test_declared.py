from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from processor.application import Application, SourceKind
from processor.operators.aggregators import Count
from processor.ownership.declarations import StoreDeclaration
from processor.rows import ORIGIN, REFUSAL
from processor.topics.creation import _largest
from statehouse.errors import ConfigurationError, ContractError


@pytest.fixture
def app():
    return Application("demo", lambda source: SimpleNamespace(columns=list(ORIGIN), source=source))


@pytest.mark.feature("streams-tables-global")
def test_sources_are_declared_in_order_and_read_once(app: Application):
    first = app.stream("events", minPartitions="4")
    app.table("rows")
    app.global_table("all")
    assert app.stream("events", minPartitions="4") is first
    assert [(source.topic, source.kind) for source in app.sources] == [
        ("events", SourceKind.STREAM),
        ("rows", SourceKind.TABLE),
        ("all", SourceKind.GLOBAL_TABLE),
    ]
    assert first.source.options == {"minPartitions": "4"}


def test_a_topic_is_at_the_application_s_own_brokers(app: Application):
    with pytest.raises(ConfigurationError, match="'events' has the option kafka"):
        app.stream("events", **{"Kafka.bootstrap.servers": "elsewhere:9092"})


def test_a_topic_is_of_one_kind(app: Application):
    app.stream("events")
    with pytest.raises(ConfigurationError, match="declared twice, as stream and table"):
        app.table("events")


def frame(*names: str, **types: str):
    """Return what a declaration asks of a frame: its columns and their types."""
    dtypes = dict.fromkeys(names, "string") | types
    return SimpleNamespace(columns=list(dtypes), dtypes=list(dtypes.items()))


TIME, STRUCT = "timestamp", "struct<start:timestamp,end:timestamp>"
MINUTE = timedelta(minutes=1)
WINDOWS = frame("key", "value", window=STRUCT)
SESSIONS = frame("key", "value", session_start=TIME, session_end=TIME)


def test_a_store_takes_a_frame_with_key_and_value(app: Application):
    app.store("counts", frame("key", "value"), partitions=3, config={"segment.ms": "1"}, max_entries=7)
    app.store("words", frame("key", "value"), kind="word-sketch", in_memory=True)
    app.store("baskets", frame("key", "value"), logging=False)
    counts, words, baskets = app.stores
    assert (counts.name, counts.partitions, counts.config) == ("counts", 3, {"segment.ms": "1"})
    assert [query.max_entries for query in app.queries] == [7, None, None]
    assert counts.declaration == StoreDeclaration("counts", "counts", 0, "demo-counts-changelog", committed=True)
    assert (words.declaration.kind, words.declaration.in_memory) == ("word-sketch", True)
    assert (baskets.declaration.ephemeral, baskets.declaration.changelog_topic) == (True, "demo-baskets-updates")
    assert not baskets.declaration.committed, "what it held before a move is gone, so no batch makes it whole"


def test_stores_of_each_kind_are_declared_with_their_times(app: Application):
    app.window_store("windows", WINDOWS, MINUTE)
    app.window_store("all", frame("key", "value", window_start=TIME, sequence="int"), MINUTE, retain_duplicates=True)
    app.session_store("sessions", SESSIONS, retention=10 * MINUTE)
    app.session_store("closed", frame("key", "value", session_window=STRUCT), inactivity_gap=MINUTE)
    app.versioned_store("versions", frame("key", "value", timestamp=TIME), 5 * MINUTE)
    windows, every, sessions, closed, versions = (store.declaration for store in app.stores)
    assert (windows.kind, windows.window_size_ms, windows.retention_ms) == ("window", 60_000, 86_400_000)
    assert every.retain_duplicates
    assert (sessions.kind, sessions.retention_ms) == ("session", 600_000)
    assert closed.kind == "session"
    assert (versions.kind, versions.retention_ms) == ("versioned", 300_000)
    modes = [query.output_mode for query in app.queries]
    assert modes == ["update", "update", "update", "append", "update"], "Spark's sessions come when they close"


def test_a_topic_may_have_the_name_of_a_store(app: Application):
    query = app.query("alerts", frame("key", "value"))
    query.store("alerts")
    query.topic("alerts")
    app.check()
    assert [(each.name, each.topic) for each in app.outputs] == [
        ("alerts", "demo-alerts-changelog"),
        ("alerts", "alerts"),
    ]
    app.query("more", frame("key", "value")).topic("alerts")
    with pytest.raises(ConfigurationError, match="'alerts' is declared twice"):
        app.check()


def test_a_global_store_is_a_topic(app: Application):
    app.global_store("products", "shop-products", "long", "json")
    (store,) = app.followed_stores
    assert (store.is_global, store.changelog_topic, store.key_serde) == (True, "shop-products", "long")
    with pytest.raises(ConfigurationError, match="declared twice"):
        app.store("products", frame("key", "value"))


def test_a_source_store_is_a_topic_in_tasks_of_its_own(app: Application):
    app.source_store("prices", "shop-prices", "long", in_memory=True)
    app.check()
    (store,) = app.followed_stores
    assert (store.foreign, store.is_global, store.committed) == (True, False, False)
    assert (store.changelog_topic, store.key_serde, store.value_serde) == ("shop-prices", "long", "json")
    app.query("prices", frame("key", "value")).topic("others")
    with pytest.raises(ConfigurationError, match="'prices' is declared twice"):
        app.check()


def test_a_custom_kind_may_build_on_windows_and_sessions(app: Application):
    app.window_store("times", WINDOWS, MINUTE, kind="histogram")
    app.session_store("carts", SESSIONS, kind="carts")
    windows, sessions = (store.declaration for store in app.stores)
    assert windows is not None
    assert sessions is not None
    assert (windows.kind, windows.layout, windows.built_on, windows.window_size_ms) == (
        "histogram",
        "window",
        "window",
        60_000,
    )
    assert (sessions.kind, sessions.layout, sessions.built_on) == ("carts", "session", "session")
    with pytest.raises(ConfigurationError, match="a session store does not build on windows"):
        app.window_store("more", WINDOWS, MINUTE, kind="session")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "window", "layout": "window", "retention_ms": 5, "window_size_ms": 1},
            "layout goes with a custom kind",
        ),
        ({"kind": "histogram", "layout": "versioned"}, "layout 'versioned' must be window or session"),
        ({"kind": "histogram", "layout": "window", "window_size_ms": 1}, "needs a retention above 0"),
        ({"kind": "histogram", "layout": "window", "retention_ms": 5}, "a window must last above 0 ms"),
        ({"kind": "carts", "layout": "session", "retention_ms": 5, "window_size_ms": 1}, "has no window_size_ms"),
    ],
)
def test_a_layout_brings_the_rules_of_its_kind(given: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        StoreDeclaration("s", "q", 1, "t", **given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataframe": frame("key")}, "lacks value"),
        ({"dataframe": frame("key", value="bigint")}, "value of its frame is bigint, it must be string or binary"),
        ({"dataframe": frame("key", "value", *REFUSAL)}, "lacks topic, partition, offset"),
        ({"key_serde": "Avro"}, "key serde 'Avro' must be one of string, .* or the name of a plug-in"),
        ({"value_serde": "protobufs"}, "value serde 'protobufs' is none of ours: write 'protobuf'"),
        ({"partitions": 0}, "must be at least 1"),
        ({"kind": "window"}, r"declare a window store with window_store"),
        ({"kind": "Word sketch"}, "name of a plug-in"),
        ({"max_entries": 0}, "max_entries=0 must be at least 1"),
        ({"max_entries": 5, "kind": "custom"}, "max_entries goes with a key-value store"),
        ({"max_entries": 5, "output_mode": "append"}, "max_entries goes with a key-value store"),
        ({"output_mode": "complete"}, "must be update or append"),
        ({"retention": 5}, "unknown retention; further options are columns, config"),
        ({"aggregator": Count()}, "aggregator goes with max_entries"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(app: Application, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        app.store("counts", **({"dataframe": frame("key", "value")} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataframe": frame("key", "value")}, "lacks window_start"),
        ({"dataframe": frame("key", "value", window_start="bigint")}, "window_start of its frame is bigint"),
        ({"dataframe": frame("key", "value", window="string")}, "window of its frame is string"),
        ({"dataframe": frame("key", "value", window=STRUCT, sequence="int")}, "nothing without retain_duplicates"),
        ({"retain_duplicates": True}, "lacks sequence"),
        ({"window_size": timedelta(0)}, "must last above 0 ms"),
        ({"window_size": timedelta(microseconds=7)}, "whole milliseconds"),
        ({"grace": -MINUTE}, "can't be negative"),
        ({"retention": MINUTE}, r"'counts': its retention \(0:01:00\) must be larger than window size \+ grace"),
        ({"retention": 6 * MINUTE, "grace": 5 * MINUTE}, r"\(0:01:00 \+ 0:05:00 = 0:06:00\)"),
    ],
)
def test_a_window_store_that_cannot_work_is_refused(app: Application, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        app.window_store("counts", **({"dataframe": WINDOWS, "window_size": MINUTE} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataframe": frame("key", "value", session_start=TIME)}, "lacks session_end"),
        ({"dataframe": frame("key", "value", session_window=STRUCT)}, "say the inactivity_gap"),
        ({"inactivity_gap": timedelta(days=1)}, r"larger than inactivity gap \+ grace"),
    ],
)
def test_a_session_store_that_cannot_work_is_refused(app: Application, arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        app.session_store("visits", **({"dataframe": SESSIONS} | arguments))


def test_a_versioned_store_needs_times_a_history_and_its_log(app: Application):
    with pytest.raises(ConfigurationError, match="lacks timestamp"):
        app.versioned_store("prices", frame("key", "value"), MINUTE)
    versions = frame("key", "value", timestamp=TIME)
    with pytest.raises(ConfigurationError, match="needs a retention"):
        app.versioned_store("rates", versions, timedelta(0))
    with pytest.raises(ConfigurationError, match="begin anew with every restart"):
        app.versioned_store("quotes", versions, MINUTE, logging=False)


def test_names_must_fit_topics(app: Application):
    with pytest.raises(ContractError):
        app.store("not a name", frame("key", "value"))
    with pytest.raises(ContractError):
        Application("no/app", lambda source: source)


def test_a_stores_partitions_are_the_largest_sources_without_global_tables(app: Application):
    app.stream("events")
    app.table("rows")
    app.global_table("all")
    assert _largest(app.sources, {"events": 4, "rows": 6, "all": 12}) == 6
    assert _largest(app.sources[2:], {"all": 12}) == 12
