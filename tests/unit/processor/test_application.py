from types import SimpleNamespace
from typing import Any

import pytest

from processor.application import Application, SourceKind
from processor.rows import ORIGIN, VERDICT
from processor.topics import _largest
from statehouse.errors import ConfigurationError, ContractError


@pytest.fixture
def app():
    return Application("demo", lambda source: SimpleNamespace(columns=list(ORIGIN), source=source))


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


def test_a_topic_is_of_one_kind(app: Application):
    app.stream("events")
    with pytest.raises(ConfigurationError, match="declared twice, as stream and table"):
        app.table("events")


def test_a_store_takes_a_frame_with_key_and_value(app: Application):
    app.store("counts", SimpleNamespace(columns=["key", "value"]), partitions=3, config={"segment.ms": "1"})
    (store,) = app.stores
    assert (store.name, store.partitions, store.config) == ("counts", 3, {"segment.ms": "1"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataframe": SimpleNamespace(columns=["key"])}, "lacks value"),
        ({"dataframe": SimpleNamespace(columns=["key", "value", *VERDICT])}, "lacks topic, partition, offset"),
        ({"key_serde": "avro"}, "key serde 'avro' is none of"),
        ({"partitions": 0}, "must be at least 1"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(app: Application, arguments: dict[str, Any], message: str):
    frame = SimpleNamespace(columns=["key", "value"])
    with pytest.raises(ConfigurationError, match=message):
        app.store("counts", **({"dataframe": frame} | arguments))


def test_names_must_fit_topics(app: Application):
    with pytest.raises(ContractError):
        app.store("not a name", SimpleNamespace(columns=["key", "value"]))
    with pytest.raises(ContractError):
        Application("no/app", lambda source: source)


def test_a_stores_partitions_are_the_largest_sources_without_global_tables(app: Application):
    app.stream("events")
    app.table("rows")
    app.global_table("all")
    assert _largest(app.sources, {"events": 4, "rows": 6, "all": 12}) == 6
    assert _largest(app.sources[2:], {"all": 12}) == 12
