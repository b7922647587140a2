"""Keys and values that are numbers, in a fleet of real processes: each door gives the number that was written."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.main import app
from statehouse.client import Answer, AsyncClient, Client, Lookup
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import Fleet, ServerProcess, produce_placed
from tests.support.polling import poll_until
from tests.support.shared import ServedStore, new_store, shared_fleet

MINUTE: Final = 60_000
BIG: Final = 2**53 + 1
DOCUMENT: Final = (
    b'{"id":1234567890123456789,"few":[9007199254740993,"9007199254740993",18446744073709551616,1.0,1,-0.0]}'
)
KEYS: Final = range(-3, 4)
IN_ORDER: Final = [0, 1, 2, 3, -3, -2, -1]
FORMS: Final = {"long": ">q", "double": ">d"}


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A node, and a router."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "numbers") as fleet:
        fleet.node("n1")
        fleet.router()
        yield fleet


@pytest.fixture
def router(fleet: Fleet) -> ServerProcess:
    return fleet.processes[1]


@pytest.fixture
def serve(fleet: Fleet, unique_name: Callable[[str], str]) -> Callable[..., ServedStore]:
    """Publish a store of numbered keys, with these entries: (key, record key, value)."""

    def served(entries: list[tuple[bytes, bytes, bytes]], **spec: Any) -> ServedStore:
        store = new_store(fleet, fleet.processes[0], unique_name("store"), **spec)
        placed = ((partition_for(key, fleet.partitions), record, value, MINUTE) for key, record, value in entries)
        produce_placed(fleet.bootstrap, store.changelog, placed)
        with Client(fleet.processes[1].target, timeout=30) as client:
            poll_until(lambda: count_of(client, store.name) == len(entries), 30, "the entries")
        return store

    return served


def count_of(client: Client, store: str) -> int | None:
    try:
        return client.count(store, exact=True).count
    except LookupFailure:
        return None


@pytest.fixture(params=[True, False], ids=["direct", "routed"])
def client(router: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(router.target, timeout=30, direct=request.param) as client:
        yield client


def run(router: ServerProcess, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--router", router.target])


@pytest.mark.parametrize("serde", sorted(FORMS))
def test_numbers_are_keys(serve: Callable[..., ServedStore], client: Client, router: ServerProcess, serde: str) -> None:
    as_key: Any = {"long": int, "double": float}[serde]
    packed = [struct.pack(FORMS[serde], as_key(n)) for n in KEYS]
    store = serve([(key, key, b"%d" % n) for key, n in zip(packed, KEYS, strict=True)], key_serde=serde).name
    for key in (2, -2, np.int64(-2), np.float64(1) if serde == "double" else np.int8(1)):
        assert client.get(store, key).value == str(int(key))
        assert client.locate(store, key).partition == client.get(store, str(as_key(key))).partition
        explained = client.explain(store, key).answer
        assert explained is not None
        assert explained.found
        with client.watch(store, key) as watch:
            assert next(iter(watch)).changes[0].value == str(int(key))
    outcomes = client.batch_get([*(Lookup(store, n) for n in KEYS), Lookup(store, 2**70), Lookup("nowhere", 1)])
    assert [each.value for each in outcomes[: len(KEYS)] if isinstance(each, Answer)] == [str(n) for n in KEYS]
    reasons = [each.reason for each in outcomes[len(KEYS) :] if isinstance(each, LookupFailure)]
    assert reasons == ([Reason.INVALID_KEY] if serde == "long" else []) + [Reason.UNKNOWN_STORE]

    def scanned(first: Any, last: Any, **how: Any) -> list[int]:
        return [int(str(each.value)) for each in client.scan(store, from_key=first, to_key=last, page_size=2, **how)]

    in_order = IN_ORDER if serde == "long" else [0, 1, 2, 3, -1, -2, -3]
    between = [n for n in in_order if -2 <= n <= 2]
    assert scanned(-2, 2) == between
    assert scanned(str(as_key(-2)), str(as_key(2)), reverse=True) == between[::-1]
    assert scanned(-1, None) == [n for n in in_order if n >= -1]
    assert scanned(None, -1) == [n for n in in_order if n <= -1]
    with pytest.raises(LookupFailure, match="first is after the last") as refused:
        scanned(3, 1)
    assert refused.value.reason is Reason.INVALID_REQUEST
    frame = client.to_pandas(store, from_key=-2, to_key=2)
    assert sorted(int(each) for each in frame["key"]) == [-2, -1, 0, 1, 2]
    with pytest.raises(LookupFailure, match="first is after the last"):
        client.to_arrow(store, from_key=3, to_key=1)
    shown = run(router, "scan", store, "--from", str(as_key(-2)), "--to", str(as_key(2)), "-o", "json")
    assert [int(json.loads(line)["value"]) for line in shown.stdout.splitlines()] == between
    assert json.loads(run(router, "get", store, str(as_key(-2)), "-o", "json").stdout)["value"] == "-2"
    assert run(router, "locate", store, str(as_key(-2))).exit_code == 0
    for wrong in (5.5, 5.0) if serde == "long" else ():
        with pytest.raises(TypeError, match="give an int"):
            client.get(store, wrong)


def test_windows_and_sessions_of_numbers(serve: Callable[..., ServedStore], client: Client) -> None:
    key = struct.Struct(">q").pack
    windows = serve(
        [(key(n), WindowKey(key(n), 0).to_bytes(), DOCUMENT) for n in KEYS],
        kind="window",
        key_serde="long",
        value_serde="json",
        retention_ms=10 * MINUTE,
        window_size_ms=MINUTE,
    ).name
    document = json.loads(DOCUMENT)
    assert [each.key for each in client.scan_windows(windows, from_key=-2, to_key=2, page_size=1)] == [
        *("0", "1", "2", "-2", "-1")
    ]
    assert [each.value for each in client.scan_windows(windows, from_key=-2, to_key=-2)] == [document]
    assert [each.value for each in client.fetch_windows(windows, -2)] == [document]
    sessions = serve(
        [(key(n), SessionKey(key(n), 0, 5).to_bytes(), DOCUMENT) for n in KEYS],
        kind="session",
        key_serde="long",
        value_serde="json",
        retention_ms=10 * MINUTE,
    ).name
    assert [each.key for each in client.scan_sessions(sessions, from_key=-2, to_key=0, reverse=True)] == [
        *("-1", "-2", "0")
    ]
    assert [each.value for each in client.fetch_sessions(sessions, -2)] == [document]
    with pytest.raises(LookupFailure, match="first is after the last"):
        list(client.scan_sessions(sessions, from_key=3, to_key=1))


def test_values_are_exact(serve: Callable[..., ServedStore], client: Client, router: ServerProcess) -> None:
    store = serve(
        [(b"k", b"k", DOCUMENT), (b"n", b"n", b"%d" % BIG)],
        kind="versioned",
        value_serde="json",
        retention_ms=10 * MINUTE,
    ).name
    document = json.loads(DOCUMENT)

    def same(found: Any) -> bool:
        return json.dumps(found, sort_keys=True) == json.dumps(document, sort_keys=True)

    assert same(client.get(store, "k").value)
    assert client.get(store, "n").value == BIG
    assert same(client.get_as_of(store, "k", MINUTE).value)
    assert [each.value for each in client.batch_get([Lookup(store, "n")]) if isinstance(each, Answer)] == [BIG]
    assert [each.value for each in client.scan(store)] == [document, BIG]
    assert [each.value for each in client.get_history(store, "n")] == [BIG]
    with client.watch(store, "n") as watch:
        assert next(iter(watch)).changes[0].value == BIG
    explained = client.explain(store, "n").answer
    assert explained is not None
    assert explained.value == BIG
    assert client.to_pandas(store)["value"].tolist() == [DOCUMENT.decode(), str(BIG)]
    assert same(json.loads(run(router, "get", store, "k", "-o", "json").stdout)["value"])
    plain = router.query.Get(query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text="n")), timeout=30)
    assert plain.value.json.string_value == str(BIG), "a Value has 64-bit floats only"

    async def read() -> Any:
        async with AsyncClient(router.target, timeout=30) as asynchronous, asynchronous.session() as session:
            return (await session.get(store, "n")).value

    assert asyncio.run(read()) == BIG
