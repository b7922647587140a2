"""Writers that place keys by another rule, and topics that grow: what callers of a node and of a router hear."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from statehouse.errors import Reason
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import produce_placed
from tests.support.polling import poll_until
from tests.support.refusals import why_refused
from tests.support.shared import ServedStore, new_store, shared_fleet

KEYS = [f"user-{number}" for number in range(6)]
LONG_AGO_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A node, and a router."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "placement") as fleet:
        fleet.node("n1")
        fleet.router()
        yield fleet


@pytest.fixture
def serve(fleet: Fleet, unique_name: Callable[[str], str]) -> Callable[..., ServedStore]:
    return lambda **spec: new_store(fleet, fleet.processes[0], unique_name("store"), foreign=True, **spec)


def warnings_of(router: ServerProcess, store: str) -> str:
    stores = router.call(router.fleet.ListStores, fleet_service_pb2.ListStoresRequest()).stores
    return " ".join(warning for each in stores if each.name == store for warning in each.warnings)


def wrong(fleet: Fleet, key: str) -> int:
    return (fleet.partition_of(key) + 1) % fleet.partitions


def test_a_key_that_may_be_anywhere_is_asked_of_all_partitions(fleet: Fleet, serve: Callable[..., ServedStore]) -> None:
    node, router = fleet.processes
    store = serve()
    assert not router.get("never", store=store.name).found, "all partitions were read, and all records are in place"
    produce_placed(fleet.bootstrap, store.changelog, [(wrong(fleet, key), key.encode(), b"there", 0) for key in KEYS])
    poll_until(lambda: router.get(KEYS[0], store=store.name).found, 20, "the first one")
    poll_until(lambda: all(router.get(key, store=store.name).found for key in KEYS), 20, "the others")

    absent = router.get("never", store=store.name)
    assert not absent.found
    assert absent.replica.partition == fleet.partition_of("never")
    assert why_refused(lambda: node.get("never", store=store.name)) is Reason.KEYS_MISPLACED
    assert why_refused(lambda: node.get(KEYS[0], store=store.name)) is Reason.KEYS_MISPLACED
    batch = query_service_pb2.BatchGetRequest()
    for key in (*KEYS, "never"):
        batch.requests.add(store=store.name, key=types_pb2.Key(text=key))
    results = router.call(router.query.BatchGet, batch).results
    assert [each.response.found for each in results] == [True] * len(KEYS) + [False]
    poll_until(lambda: "misplaced" in warnings_of(router, store.name), 20, "a warning")

    # The same key where it should be, first with an earlier timestamp, then with a later one.
    now = 0
    for timestamp_ms, value, expected in [(LONG_AGO_MS, b"old", "there"), (now, b"new", "new")]:
        at = fleet.partition_of(KEYS[0])
        produce_placed(fleet.bootstrap, store.changelog, [(at, KEYS[0].encode(), value, timestamp_ms)])
        poll_until(lambda at=at: store.replica(at).lag == 0, 20, "the record")
        poll_until(lambda expected=expected: router.get(KEYS[0], store=store.name).value.text == expected, 20, expected)

    node.kill()
    node.start()
    poll_until(lambda: sum(store.replica(at).misplaced_records for at in range(fleet.partitions)) == 6, 40, "the count")
    poll_until(lambda: why_refused(lambda: router.get("never", store=store.name)) is None, 40, "the router")
    assert not router.get("never", store=store.name).found


def test_a_page_of_one_keys_windows_is_refused_where_windows_may_be_elsewhere(
    fleet: Fleet, serve: Callable[..., ServedStore]
) -> None:
    router = fleet.processes[1]
    store = serve(kind="window", retention_ms=10 * 60_000, window_size_ms=60_000)
    ask = query_service_pb2.FetchWindowsRequest(store=store.name, key=types_pb2.Key(text="k"))
    poll_until(lambda: why_refused(lambda: router.call(router.query.FetchWindows, ask)) is None, 20, "the store")
    right = [(fleet.partition_of("k"), WindowKey(b"k", 60_000).to_bytes(), b"1", 0)]
    produce_placed(fleet.bootstrap, store.changelog, right)
    poll_until(lambda: len(router.call(router.query.FetchWindows, ask).windows) == 1, 20, "a window where it should be")
    produce_placed(fleet.bootstrap, store.changelog, [(wrong(fleet, "k"), right[0][1], b"2", 0)])
    poll_until(
        lambda: why_refused(lambda: router.call(router.query.FetchWindows, ask)) is Reason.KEYS_MISPLACED, 20, "refusal"
    )


def test_a_topic_that_grows_has_its_store_refuse_and_no_other(fleet: Fleet, serve: Callable[..., ServedStore]) -> None:
    node, router = fleet.processes
    store = serve()
    store.put(dict.fromkeys(KEYS, "1"))
    poll_until(lambda: all(router.get(key, store=store.name).found for key in KEYS), 20, "the entries")
    fleet.put({"other": "1"})
    poll_until(lambda: router.get("other").found, 20, "the other store")
    admin = AdminClient({"bootstrap.servers": fleet.bootstrap})
    grown = 2 * fleet.partitions
    admin.create_partitions([NewPartitions(store.changelog, grown)])[store.changelog].result(30)
    for process in (node, router):
        poll_until(
            lambda process=process: why_refused(lambda: process.get(KEYS[0], store=store.name)) is Reason.TOPIC_CHANGED,
            20,
            "a refusal",
        )
    poll_until(lambda: f"{grown} partitions" in warnings_of(router, store.name), 20, "a warning")
    assert router.get("other").value.text == "1"
