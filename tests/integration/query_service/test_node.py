"""A node process on a real broker: restoring, following, answering, refusing, coming back."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Producer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, confirmed, is_at_end
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until
from tests.support.shared import ServedStore, new_store, shared_fleet


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def shared(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one node for the tests that leave it as it was."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "node") as fleet:
        fleet.node("n1")
        yield fleet


@pytest.fixture
def store(shared: Fleet, unique_name: Callable[[str], str]) -> ServedStore:
    return new_store(shared, shared.processes[0], unique_name("store"))


@pytest.mark.feature("get-value-typed")
def test_restores_then_follows_and_answers_with_proof(fleet: Fleet) -> None:
    key = fleet.keys_in(0)[0]
    fleet.put({key: "1", "gone": "1"})
    fleet.put({"gone": None})
    node = fleet.node("n1")
    epoch = fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])

    answer = confirmed(node, key)
    assert (answer.found, answer.value.text) == (True, "1")
    assert answer.replica.epoch == epoch
    assert answer.replica.partition == 0
    assert answer.replica.host.instance_id == "n1"
    assert answer.replica.host.port == node.port

    assert node.get("gone").found is False
    assert node.get("never").found is False

    fleet.put({key: "2"})
    poll_until(lambda: node.get(key).value.text == "2", 20, "the update to be followed")
    caught_up = poll_until(
        lambda: is_at_end((a := node.get(key)).replica) and a.replica.staleness_ms < 5_000 and a,
        20,
        "lag 0, and a small staleness",
    )
    assert caught_up.replica.position > answer.replica.position


@pytest.mark.feature("lookups-runs-stay")
def test_a_log_that_never_pauses_is_restored(fleet: Fleet) -> None:
    """The client tells of a log's end only when it finds nothing more, which it never does here."""
    (key,) = fleet.keys_in(0)
    stop = threading.Event()

    def write() -> None:
        producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 0})
        while not stop.wait(0.005):
            producer.produce(fleet.changelog, key=key.encode(), value=b"1", partition=0)
            producer.poll(0)
        producer.flush(10)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        node = fleet.node("n1")
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        fleet.wait_running([node])
        assert node.get(key).found
    finally:
        stop.set()
        writer.join()


@pytest.mark.feature("found-said-only")
def test_says_which_reads_it_must_not_answer(fleet: Fleet) -> None:
    mine, other = fleet.keys_in(0)[0], fleet.keys_in(1)[0]
    node, standby = fleet.node("n1"), fleet.node("n2")
    with pytest.raises(LookupFailure) as failure:
        node.get(mine)
    assert failure.value.reason is Reason.ROUTING_NOT_READY

    epoch = fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n2"))
    fleet.wait_running([node, standby])

    def route_elsewhere() -> Any:
        """Return where the node says that the other key is, once it has heard of that node."""
        with pytest.raises(LookupFailure) as failure:
            node.get(other)
        assert failure.value.reason is Reason.PARTITION_NOT_OWNED
        return failure.value.route if failure.value.route is not None and failure.value.route.active.port else None

    route = poll_until(route_elsewhere, 20, "the node to have heard of the other")
    assert (route.epoch, route.active.instance_id, route.active.port) == (epoch, "n2", standby.port)

    with pytest.raises(LookupFailure) as failure:
        node.get(mine, store="nope")
    assert failure.value.reason is Reason.UNKNOWN_STORE

    with pytest.raises(LookupFailure) as failure:
        standby.get(mine, active_only=True)
    assert failure.value.reason is Reason.NOT_ACTIVE
    assert standby.get(mine).replica.role == types_pb2.REPLICA_ROLE_STANDBY

    with pytest.raises(LookupFailure) as failure:
        node.call(node.query.Get, query_service_pb2.GetRequest(store=STORE))
    assert failure.value.reason is Reason.INVALID_KEY

    newer = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=mine))
    newer.forwarding.epoch = epoch + 1
    assert node.call(node.query.Get, newer).replica.role == types_pb2.REPLICA_ROLE_STANDBY


def test_batch_has_an_outcome_per_key(fleet: Fleet) -> None:
    mine, other = fleet.keys_in(0)[0], fleet.keys_in(1)[0]
    fleet.put({mine: "1", other: "2"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment(None))
    fleet.wait_running([node])
    batch = query_service_pb2.BatchGetRequest()
    for key in (mine, other):
        batch.requests.add(store=STORE, key=types_pb2.Key(text=key))
    first, second = node.call(node.query.BatchGet, batch).results
    assert first.response.value.text == "1"
    assert second.error.reason == Reason.PARTITION_NOT_OWNED

    # Through a router as well: a partition that nobody holds costs its own keys, and the others are answered.
    router = fleet.router()
    batch.requests.add(store="nope", key=types_pb2.Key(text=mine))
    batch.requests.add(store=STORE, key=types_pb2.Key(text=mine))

    def routed() -> list[query_service_pb2.BatchGetResult]:
        try:
            results = list(router.call(router.query.BatchGet, batch).results)
        except LookupFailure as error:
            assert error.reason is Reason.ROUTING_NOT_READY  # noqa: PT017 - polled
            return []
        return results if results[0].HasField("response") else []

    results = poll_until(routed, 20, "the router")
    assert [result.WhichOneof("outcome") for result in results] == ["response", "error", "error", "response"]
    assert results[0].response.value.text == results[3].response.value.text == "1"
    assert results[1].error.reason == Reason.NO_REPLICA_AVAILABLE
    assert "the assignment names no node for the partition" in results[1].error.message
    assert results[2].error.reason == Reason.UNKNOWN_STORE


@pytest.mark.feature("scan-ranges-prefixes")
def test_scans_pages_in_key_order_both_ways(store: ServedStore) -> None:
    node = store.node
    keys = sorted(store.fleet.keys_in(1, 25), key=str.encode)
    store.put({key: f"v{key}" for key in keys})
    poll_until(lambda: all(store.get(key).found for key in keys), 20, "the entries")

    def scan(**fields: object) -> list[str]:
        request = query_service_pb2.ScanRequest(store=store.name, partition=1, page_size=7, **fields)  # type: ignore[arg-type]
        found = []
        while True:
            page = node.call(node.query.Scan, request)
            assert len(page.entries) <= 7
            found += [entry.key.text for entry in page.entries]
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    text = lambda key: types_pb2.Key(text=key)  # noqa: E731
    assert scan() == keys
    assert scan(reverse=True) == keys[::-1]
    assert scan(from_key=text(keys[3]), to_key=text(keys[20])) == keys[3:21]
    assert scan(from_key=text(keys[3]), to_key=text(keys[20]), reverse=True) == keys[3:21][::-1]
    assert scan(prefix=text("k1")) == [key for key in keys if key.startswith("k1")]

    count = query_service_pb2.CountRequest(store=store.name, partition=1, exact=True)
    assert node.call(node.query.Count, count).count == 25

    bad = query_service_pb2.ScanRequest(store=store.name, partition=1, page_token="???")  # noqa: S106
    with pytest.raises(LookupFailure) as failure:
        node.call(node.query.Scan, bad)
    assert failure.value.reason is Reason.INVALID_PAGE_TOKEN


@pytest.mark.feature("offset-stands-write")
def test_killed_node_comes_back_from_its_checkpoint(fleet: Fleet) -> None:
    keys = fleet.keys_in(0, 200)
    fleet.put(dict.fromkeys(keys, "old"))
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    first = ServedStore(fleet, node).replica()
    assert first.restored_records == 200
    node.kill()

    fleet.put({keys[0]: "new"})
    node.start()
    fleet.wait_running([node])
    second = ServedStore(fleet, node).replica()
    assert second.restored_from >= 200
    assert second.restored_records == 1
    assert node.get(keys[0]).value.text == "new"
    assert node.get(keys[1]).value.text == "old"


@pytest.mark.feature("state-task-moved")
def test_losing_and_regaining_a_task_keeps_its_state(store: ServedStore) -> None:
    fleet, node = store.fleet, store.node
    key = fleet.keys_in(0)[0]
    store.put({key: "1"})
    poll_until(lambda: store.get(key).found, 20, "the entry")
    fleet.reassign(0, active=None)
    fleet.wait_running([node])
    with pytest.raises(LookupFailure) as failure:
        store.get(key)
    assert failure.value.reason is Reason.PARTITION_NOT_OWNED
    fleet.reassign(0, active="n1")
    fleet.wait_running([node])
    assert store.get(key).value.text == "1"
    assert (store.replica().restored_from, store.replica().restored_records) == (1, 0)


def test_a_store_that_a_task_gets_later_is_served_without_a_restart(fleet: Fleet) -> None:
    key = fleet.keys_in(0)[0]
    fleet.put({key: "1"})
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    later = replace(fleet.spec, name="later", changelog_topic=f"{fleet.application_id}-later-changelog")
    create_topic(fleet.bootstrap, later.changelog_topic, fleet.partitions, {"cleanup.policy": "compact"})
    produce(fleet.bootstrap, later.changelog_topic, [(key.encode(), b"2")], 0)
    # How values are shown is no reason to open anything anew.
    fleet.stores = MappingProxyType({STORE: replace(fleet.spec, value_serde="bytes"), "later": later})
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))

    def found() -> bool:
        try:
            return node.get(key, store="later").found
        except LookupFailure as failure:
            reasons.add(failure.reason)
            return False

    reasons: set[Reason] = set()
    poll_until(found, 30, "the new store")
    assert reasons <= {Reason.UNKNOWN_STORE, Reason.PARTITION_RESTORING}
    assert node.get(key).value.raw == b"1"
    counts = next(store for store in node.node().tasks[0].stores if store.store == STORE)
    assert (counts.restored_from, counts.restored_records) == (1, 0), "what was there is read on"
    opened = node.log.count("store opened")
    fleet.stores = MappingProxyType({STORE: fleet.spec, "later": later})
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    poll_until(lambda: node.get(key).value.text == "1", 30, "the other serde")
    assert node.log.count("store opened") == opened

    # The log still has the assignments of before that store. A restart acts on none of them: they would remove it.
    taken = node.log.count("assignment taken")
    node.stop()
    node.start()
    fleet.wait_running([node])
    assert node.get(key, store="later").found
    stores = next(task.stores for task in node.node().tasks if task.task == "0_0")
    assert [(each.store, each.restored_records) for each in stores] == [(STORE, 0), ("later", 0)]
    assert node.log.count("assignment taken") == taken + 1


@pytest.mark.feature("unknown-fields-newer")
def test_a_store_of_a_newer_processor_stops_no_other(fleet: Fleet) -> None:
    key, other = fleet.keys_in(0)[0], fleet.keys_in(1)[0]
    fleet.put({key: "1", other: "1"})
    node = fleet.node("n1")
    newer = replace(fleet.spec, name="newer", changelog_topic=f"{fleet.application_id}-newer-changelog")
    newer = replace(newer, value_serde="a-later-one")
    create_topic(fleet.bootstrap, newer.changelog_topic, fleet.partitions, {"cleanup.policy": "compact"})
    fleet.stores = MappingProxyType({STORE: fleet.spec, "newer": newer})
    fleet.assign(TaskAssignment("n1"), TaskAssignment())
    fleet.wait_running([node])
    assert node.get(key).found
    fleet.put({key: "written later"}, store="newer")
    raw = query_service_pb2.GetRequest(store="newer", key=types_pb2.Key(text=key), raw=True)
    poll_until(lambda: node.call(node.query.Get, raw).value.raw == b"written later", 20, "the newer store's value, raw")
    with pytest.raises(LookupFailure, match="no package installed here has the serde 'a-later-one'") as told:
        node.get(key, store="newer")
    assert told.value.reason is Reason.SERDE_UNAVAILABLE
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    assert node.get(other).found


@pytest.mark.feature("one-process-task")
def test_second_process_on_the_same_state_is_refused_and_named(fleet: Fleet) -> None:
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment(None))
    fleet.wait_running([node])
    second = fleet.node("n2", state_dir=fleet.directory / "n1")
    fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment(None))
    task = poll_until(lambda: [t for t in second.node().tasks if t.state == "error"], 20, "the task to be refused")[0]
    assert f"process {node.pid}" in task.error
    with pytest.raises(LookupFailure) as failure:
        second.get(fleet.keys_in(0)[0])
    assert failure.value.reason is Reason.TASK_FAILED
    node.stop()
    poll_until(lambda: second.node().tasks[0].state == "running", 30, "the lock to be taken over")


@pytest.mark.feature("getnode-drain-grpc")
def test_stops_cleanly_and_tells_health(fleet: Fleet) -> None:
    node = fleet.node("n1")
    fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
    fleet.wait_running([node])
    health = health_pb2_grpc.HealthStub(node.channel)
    for service in ("", "statehouse.v1.QueryService", "statehouse.v1.NodeService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(request, timeout=5).status == health_pb2.HealthCheckResponse.SERVING, service
    assert node.stop(signal.SIGINT) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", node.port), timeout=5)


def test_taken_port_is_said(store: ServedStore) -> None:
    second = store.fleet.node("n2", port=store.node.port)
    assert second.wait() != 0
    assert "--port" in second.log
