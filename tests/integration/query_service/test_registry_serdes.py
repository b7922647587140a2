"""Avro, Protobuf and JSON Schema: written by Confluent's serializers with a real registry, read as JSON by a router.

The registry is Apicurio's application, which speaks the protocol of Confluent's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from statehouse.client import Answer, Client, Lookup
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import WINDOW, StoreSpec, changelog_topic
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.serdes.registry.wire_format import framed
from tests.support.fleet import Fleet
from tests.support.kafka import create_topic, produce_placed
from tests.support.polling import poll_until
from tests.support.registry import SchemaRegistry, registry_client

MINUTE_MS = 60_000
FIRST = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
SECOND = (
    '{"type":"record","name":"Order","fields":'
    '[{"name":"id","type":"long"},{"name":"note","type":["null","string"],"default":null}]}'
)
THIRD = '{"type":"record","name":"Other","fields":[{"name":"x","type":"int"}]}'
KEY = '{"type":"record","name":"Key","fields":[{"name":"user","type":"string"}]}'
JSON_SCHEMA = '{"title":"Visit","type":"object","properties":{"page":{"type":"string"}}}'
WITHOUT_PLUG_IN = "morse"

Serialize = Callable[[Any], bytes]


@cache
def message_class() -> Any:
    """Return `message Total { int64 count = 1; string word = 2; }` as a class, which no file was generated for."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="total.proto", package="shop", syntax="proto3")
    total = file.message_type.add(name="Total")
    total.field.add(name="count", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    total.field.add(name="word", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Total"))


class Shop:
    """A fleet with a store of each serde, and what writes to them."""

    def __init__(self, fleet: Fleet, client: Client, registry: SchemaRegistry, schemas: Any) -> None:
        self.fleet, self.client, self.registry, self._schemas = fleet, client, registry, schemas

    def topic(self, store: str) -> str:
        return self.fleet.stores[store].changelog_topic

    def avro(self, store: str, schema: str, field: str = MessageField.VALUE) -> Serialize:
        serializer = AvroSerializer(self._schemas, schema)
        return lambda value: serializer(value, SerializationContext(self.topic(store), field))

    def protobuf(self, store: str) -> Serialize:
        serializer = ProtobufSerializer(message_class(), self._schemas)
        return lambda value: serializer(value, SerializationContext(self.topic(store), MessageField.VALUE))

    def json(self, store: str) -> Serialize:
        serializer = JSONSerializer(JSON_SCHEMA, self._schemas)
        return lambda value: serializer(value, SerializationContext(self.topic(store), MessageField.VALUE))

    def put(self, store: str, *entries: tuple[bytes, bytes]) -> None:
        """Write entries, and wait until the node has them."""
        partitions = self.fleet.partitions
        records = [(partition_for(key, partitions), key, value, 0) for key, value in entries]
        produce_placed(self.fleet.bootstrap, self.topic(store), iter(records))
        for key, value in entries:
            poll_until(lambda key=key, value=value: self.raw(store, key) == value, 20, f"{key!r} in {store}")

    def raw(self, store: str, key: bytes) -> object:
        return self.client.get(store, key, raw=True).value

    def get(self, store: str, key: str | bytes) -> object:
        return self.client.get(store, key).value

    def why(self, store: str, key: str | bytes) -> LookupFailure:
        with pytest.raises(LookupFailure) as failed:
            self.client.get(store, key)
        return failed.value


@pytest.fixture(scope="module")
def shop(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    directory = tmp_path_factory.mktemp("registry")
    name = directory.name
    with ExitStack() as stack:
        registry = stack.enter_context(SchemaRegistry(directory))
        windows = changelog_topic(name, "windows")
        create_topic(kafka.bootstrap, windows, 2, {"cleanup.policy": "compact"})
        windowed = StoreSpec(
            "windows",
            windows,
            2,
            0,
            kind=WINDOW,
            value_serde="avro",
            retention_ms=60 * MINUTE_MS,
            window_size_ms=MINUTE_MS,
        )
        fleet = stack.enter_context(Fleet(kafka.bootstrap, name, directory, value_serde="avro", beside=[windowed]))
        for name in ("pages", "outage"):
            fleet.add_store(name, value_serde="avro")
        fleet.add_store("totals", value_serde="protobuf")
        fleet.add_store("visits", value_serde="json-schema")
        fleet.add_store("keyed", key_serde="avro", value_serde="avro")
        fleet.add_store("sittings", kind="session", key_serde="avro", value_serde="avro", retention_ms=60 * MINUTE_MS)
        fleet.add_store("odd", value_serde=WITHOUT_PLUG_IN)
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        node = fleet.node("n1", schema_registry_url=registry.url, schema_registry_timeout_ms=1000)
        router = fleet.router()
        fleet.wait_running([node])
        client = stack.enter_context(Client(router.target))
        registry.wait()
        schemas = stack.enter_context(registry_client(registry.url))
        yield Shop(fleet, client, registry, schemas)


@pytest.mark.feature("avro-protobuf-json")
def test_values_are_json_and_schemas_evolve(shop: Shop) -> None:
    first, second = shop.avro("counts", FIRST), shop.avro("counts", SECOND)
    old, new = first({"id": 1}), second({"id": 2, "note": "x"})
    assert old[1:5] != new[1:5]
    shop.put("counts", (b"old", old), (b"new", new))
    # The first lookups of a schema come together: a batch does not wait for it, and the router asks again for each.
    outcomes = shop.client.batch_get(Lookup("counts", key) for key in ("old", "new", "none"))
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Answer)] == [
        {"id": 1},
        {"id": 2, "note": "x"},
        None,
    ]
    assert shop.get("counts", "old") == {"id": 1}

    total = message_class()(count=2**40, word="spark")
    shop.put("totals", (b"spark", shop.protobuf("totals")(total)))
    assert shop.get("totals", "spark") == {"count": 2**40, "word": "spark"}

    shop.put("visits", (b"ann", shop.json("visits")({"page": "home"})))
    assert shop.get("visits", "ann") == {"page": "home"}


def test_pages_and_watches_show_them_too(shop: Shop) -> None:
    write = shop.avro("pages", FIRST)
    names = [b"k%d" % number for number in range(5)]
    shop.put("pages", *((name, write({"id": number})) for number, name in enumerate(names)))
    expected = [(name.decode(), {"id": number}) for number, name in enumerate(names)]
    assert [(entry.key, entry.value) for entry in shop.client.scan("pages", page_size=2)] == expected
    assert [(each.key, each.value) for each in shop.client.scan("pages", page_size=2, raw=True)] == [
        (name, write({"id": number})) for number, name in enumerate(names)
    ]
    with shop.client.watch("pages", "k3") as watch:
        update = next(update for update in watch if update.changes)
        assert [(change.key, change.value) for change in update.changes] == [("k3", {"id": 3})]

    windows = [WindowKey(b"ann", MINUTE_MS * number).to_bytes() for number in (1, 2)]
    records = [(shop.fleet.partition_of("ann"), key, write({"id": 7}), 0) for key in windows]
    produce_placed(shop.fleet.bootstrap, shop.topic("windows"), iter(records))
    poll_until(lambda: len(list(shop.client.fetch_windows("windows", "ann"))) == 2, 20, "both windows")
    assert [window.value for window in shop.client.fetch_windows("windows", "ann")] == [{"id": 7}] * 2
    found = [(window.key, window.start_ms, window.value) for window in shop.client.scan_windows("windows", page_size=1)]
    assert found == [("ann", MINUTE_MS, {"id": 7}), ("ann", 2 * MINUTE_MS, {"id": 7})]


@pytest.mark.feature("avro-protobuf-json")
def test_keys_are_routed_by_their_bytes_and_shown_as_json(shop: Shop) -> None:
    key = shop.avro("keyed", KEY, MessageField.KEY)
    write = shop.avro("keyed", FIRST)
    keys = {name: key({"user": name}) for name in ("ann", "bob", "cat")}
    shop.put("keyed", *((data, write({"id": len(name)})) for name, data in keys.items()))
    assert shop.get("keyed", keys["bob"]) == {"id": 3}
    entries = list(shop.client.scan("keyed", page_size=1))
    assert [(entry.key, entry.value) for entry in entries] == [
        (f'{{"user":"{name}"}}', {"id": 3}) for name in ("ann", "bob", "cat")
    ]
    failure = shop.why("keyed", '{"user":"ann"}')
    assert failure.reason is Reason.INVALID_KEY
    assert "send raw bytes" in failure.message


@pytest.mark.feature("sessions-range-keys")
def test_sessions_of_a_range_of_keys_are_shown_as_json(shop: Shop) -> None:
    key, write = shop.avro("sittings", KEY, MessageField.KEY), shop.avro("sittings", FIRST)
    # More than a few, so that both partitions have some: whose keys are where depends on the schema's id.
    names = [f"u{number}" for number in range(10)]
    keys = {name: key({"user": name}) for name in names}
    stored = [
        (keys[name], SessionKey(keys[name], start, start + MINUTE_MS).to_bytes(), write({"id": start // MINUTE_MS}))
        for name in names
        for start in (MINUTE_MS, 10 * MINUTE_MS)
    ]
    partitions = shop.fleet.partitions
    records = [(partition_for(key, partitions), composite, value, 0) for key, composite, value in stored]
    produce_placed(shop.fleet.bootstrap, shop.topic("sittings"), iter(records))
    poll_until(lambda: len(list(shop.client.scan_sessions("sittings", raw=True))) == len(stored), 20, "all sessions")

    found = [
        (each.key, each.start_ms, each.end_ms, each.value)
        for each in shop.client.scan_sessions("sittings", page_size=1)
    ]
    assert found == [
        (f'{{"user":"{name}"}}', start, start + MINUTE_MS, {"id": start // MINUTE_MS})
        for name in names
        for start in (MINUTE_MS, 10 * MINUTE_MS)
    ]
    some = shop.client.scan_sessions("sittings", from_key=keys["u2"], to_key=keys["u3"], to_ms=2 * MINUTE_MS)
    assert [(each.key, each.value) for each in some] == [('{"user":"u2"}', {"id": 1}), ('{"user":"u3"}', {"id": 1})]
    raw = list(shop.client.scan_sessions("sittings", reverse=True, raw=True))
    assert [(each.key, each.value) for each in raw] == [(key, value) for key, _, value in reversed(stored)]


@pytest.mark.feature("value-serde-t")
def test_a_serde_without_a_plug_in_is_routed_and_read_raw(shop: Shop) -> None:
    shop.put("odd", (b"k", b"...---..."))
    failure = shop.why("odd", "k")
    assert "no package installed here has the serde 'morse'" in str(failure)
    assert Reason.SERDE_UNAVAILABLE in {failure.reason, *(each.reason for each in failure.candidates)}


@pytest.mark.feature("value-serde-t")
@pytest.mark.feature("avro-protobuf-json")
def test_without_the_registry_known_schemas_go_on_and_others_say_why(shop: Shop) -> None:
    known, unknown = shop.avro("outage", FIRST)({"id": 1}), framed(2**31, b"\x02")
    late = shop.avro("outage", THIRD)({"x": 1})
    shop.put("outage", (b"known", known), (b"unknown", unknown), (b"late", late), (b"torn", known[:5]))
    assert shop.get("outage", "known") == {"id": 1}
    for key, says in (("unknown", f"has no schema {2**31}"), ("torn", "is not what schema")):
        failure = shop.why("outage", key)
        assert failure.reason is Reason.VALUE_UNDECODABLE, key
        assert says in failure.message
        assert "raw=true" in failure.message

    shop.registry.close()
    assert shop.get("outage", "known") == {"id": 1}
    failure = shop.why("outage", "late")
    assert Reason.SERDE_UNAVAILABLE in {failure.reason, *(each.reason for each in failure.candidates)}
    assert "schema registry at http://127.0.0.1" in str(failure)
    assert shop.raw("outage", b"late") == late
    # A page that can't be decoded for now fails, instead of showing bytes where there are documents.
    with pytest.raises(LookupFailure, match="schema registry"):
        list(shop.client.scan("outage"))
    assert len(list(shop.client.scan("outage", raw=True))) == 4
    # The router had no registry all along.
    assert shop.get("outage", "known") == {"id": 1}
