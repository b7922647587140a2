"""Custom stores on real nodes, asked directly and through a router: the example's sketches, and plug-ins that fail."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from word_sketch.sketches import new_sketch

from query_service.stores.custom import GROUP
from statehouse.client import Client, Freshness
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import node_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import produce
from tests.support.plugins import install
from tests.support.polling import poll_until
from tests.support.shared import new_store, publish_store, shared_fleet

CHATTY = """
from query_service.stores.key_value import KeyValueStore
from query_service.stores.windows import SESSIONS, TimedStore

class Chatty(KeyValueStore):
    query_names = ("echo", "raise", "nonsense")

    def __init__(self, spec, engine):
        super().__init__(engine)

    def apply(self, records, checkpoint):
        if any(record.value == b"poison" for record in records):
            raise RuntimeError("poisoned")
        return super().apply(records, checkpoint)

    def query(self, name, key, arguments):
        if name == "raise":
            raise KeyError("oh")
        return object() if name == "nonsense" else {"key": key.hex(), **arguments}

def unlicensed(spec, engine):
    raise RuntimeError("no licence")

class Visits(TimedStore):
    query_names = ("longest",)

    def __init__(self, spec, engine):
        super().__init__(engine, SESSIONS, spec.retention_ms)

    def query(self, name, key, arguments):
        page = self.entries_of(key, arguments["from_ms"], arguments["to_ms"])
        found = [[visit.end_ms - visit.start_ms, value.decode()] for visit, value in page.entries]
        return max(found, default=None)
"""


@pytest.fixture
def new_fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Callable[..., Fleet]:
    return lambda **spec: Fleet(kafka.bootstrap, unique_name("app"), tmp_path, **spec)


@pytest.fixture(scope="module")
def shared(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A fleet with one node, which finds our plug-ins."""
    folder = tmp_path_factory.mktemp("packages")
    kinds = {"chatty": "chatty:Chatty", "unlicensed": "chatty:unlicensed", "visits": "chatty:Visits"}
    install(folder, "chatty", GROUP, kinds, CHATTY)
    with pytest.MonkeyPatch.context() as patch, shared_fleet(kafka.bootstrap, tmp_path_factory, "custom") as fleet:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        fleet.node("n1")
        yield fleet


def asking(process: ServerProcess) -> Client:
    return Client(f"127.0.0.1:{process.port}")


def routed(client: Client, key: str) -> bool:
    try:
        return client.query_store(STORE, key, "estimate", {"item": "a"}).result is not None
    except LookupFailure as failure:
        assert failure.reason in {  # noqa: PT017 - polled
            Reason.UNREACHABLE,
            Reason.ROUTING_NOT_READY,
            Reason.NO_REPLICA_AVAILABLE,
        }
        return False


@pytest.mark.feature("kinds-one-own")
@pytest.mark.feature("querystore-queries-custom")
def test_sketches_are_restored_and_asked(new_fleet: Callable[..., Fleet]) -> None:
    with new_fleet(kind="count-min-sketch", value_serde="bytes") as fleet:
        channels = {
            key: Counter(a=n + 5, b=2 * n + 1) for n, key in enumerate([*fleet.keys_in(0, 3), *fleet.keys_in(1, 3)])
        }
        node, standby, router = fleet.node("n1"), fleet.node("n2"), fleet.router()
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n1", ("n2",)))
        for key, counts in channels.items():
            # As the processor does it: the whole sketch anew with each change; the last one is the state.
            sketch = new_sketch()
            for word, count in counts.items():
                sketch.update(word, count)
                produce(fleet.bootstrap, fleet.changelog, [(key.encode(), sketch.serialize())], fleet.partition_of(key))
        fleet.wait_running([node, standby])

        def estimates(client: Client) -> dict[str, dict[str, Any]]:
            return {
                key: {word: client.query_store(STORE, key, "estimate", {"item": word}).result for word in "abc"}
                for key in channels
            }

        def right(found: dict[str, dict[str, Any]]) -> bool:
            return all(
                each["lower"] <= channels[key][word] <= each["estimate"] <= channels[key][word] + 1
                for key, by_word in found.items()
                for word, each in by_word.items()
                if each is not None
            ) and all(by_word["b"] is not None and by_word["b"]["estimate"] > 0 for by_word in found.values())

        with asking(router) as client, asking(node) as direct:
            poll_until(lambda: all(routed(client, key) for key in channels), 30, "every channel, routed")
            poll_until(lambda: right(estimates(client)), 20, "the last sketches")
            assert right(estimates(direct))
            only = Freshness(active_only=True)  # on a busy machine the standby may be faster
            answer = client.query_store(STORE, next(iter(channels)), "estimate", {"item": "a"}, freshness=only)
            assert answer.replica.host.instance_id == "n1"
            assert answer.replica.role == "ACTIVE"
            assert client.query_store(STORE, "no channel", "estimate", {"item": "a"}).result is None
            with pytest.raises(LookupFailure, match="there are: estimate") as failure:
                client.query_store(STORE, "no channel", "top")
            assert failure.value.reason is Reason.INVALID_REQUEST
            assert len(list(client.scan(STORE))) == len(channels), "what it inherits works, too"
            assert client.get(STORE, next(iter(channels)), raw=True).value[:1] != b""

            node.kill()
            assert right(estimates(client)), "the standby has the same sketches"
            node.start()
            fleet.wait_running([node])
        with asking(node) as direct:
            assert right(estimates(direct)), "and so has the restarted node"
        assert all(store.restored_records == 0 for task in node.node().tasks for store in task.stores)


def test_what_a_query_raises_fails_the_call_alone(shared: Fleet, unique_name: Callable[[str], str]) -> None:
    store = new_store(shared, shared.processes[0], unique_name("store"), kind="chatty")
    key, other = shared.keys_in(0)[0], shared.keys_in(1)[0]
    with asking(store.node) as client:
        arguments = {"text": "ü", "numbers": [1, 2.5, None], "deep": {"yes": True}}
        found = client.query_store(store.name, key, "echo", arguments).result
        assert found == {"key": key.encode().hex(), **arguments}
        for name, message in (("raise", "KeyError: 'oh'"), ("nonsense", "object is not JSON")):
            with pytest.raises(LookupFailure, match=message) as failure:
                client.query_store(store.name, key, name)
            assert failure.value.reason is Reason.INTERNAL
        assert client.query_store(store.name, key, "echo").result == {"key": key.encode().hex()}

        # A store that raises while it applies stops its task, and no other.
        store.put({key: "poison", other: "fine"})
        task = poll_until(lambda: failed_tasks(store.node), 20, "the task to stop")[0]
        assert (task.task, "RuntimeError: poisoned" in task.error) == ("0_0", True)
        poll_until(lambda: client.get(store.name, other).found, 20, "the other partition's value")


def failed_tasks(node: ServerProcess) -> list[node_service_pb2.TaskReplica]:
    return [task for task in node.node().tasks if task.state == "error"]


@pytest.mark.parametrize(
    ("kind", "error"), [("unlicensed", "RuntimeError: no licence"), ("unheard-of", "'unheard-of'.*'statehouse.stores'")]
)
def test_a_kind_that_cannot_be_opened_puts_the_task_in_error(
    shared: Fleet, unique_name: Callable[[str], str], kind: str, error: str
) -> None:
    node = shared.processes[0]
    store = publish_store(shared, node, unique_name("store"), kind=kind)
    poll_until(lambda: any(kind in task.error for task in failed_tasks(node)), 20, "a task to stop")
    key = shared.keys_in(0)[0]

    def refusal() -> LookupFailure | None:
        """Return why the store is not asked; None while its task is opened once more."""
        with asking(node) as client, pytest.raises(LookupFailure) as failure:
            client.query_store(store.name, key, "echo")
        return failure.value if failure.value.reason is Reason.TASK_FAILED else None

    assert re.search(error, poll_until(refusal, 20, "the reason").message)


@pytest.mark.feature("custom-kinds-layouts")
@pytest.mark.parametrize("in_memory", [True, False])
def test_a_kind_on_the_layout_of_sessions_is_restored_and_asked(
    shared: Fleet, unique_name: Callable[[str], str], in_memory: bool
) -> None:
    node, key, other = shared.processes[0], shared.keys_in(0)[0], shared.keys_in(1)[0]
    visits = {"kind": "visits", "layout": "session", "retention_ms": 60_000, "in_memory": in_memory}
    store = new_store(shared, node, unique_name("store"), **visits)
    times = {key: [(0, 1_000), (2_000, 9_000), (20_000, 21_000)], other: [(3_000, 4_000)]}

    def put(key: str, start_ms: int, end_ms: int, value: bytes | None) -> None:
        store.put_records([(key, SessionKey(key.encode(), start_ms, end_ms).to_bytes(), value, end_ms)])

    for owner, spans in times.items():
        for start_ms, end_ms in spans:
            put(owner, start_ms, end_ms, b"from %d" % start_ms)

    def longest(client: Client, owner: str, from_ms: int = 0, to_ms: int = 30_000) -> object:
        return client.query_store(store.name, owner, "longest", {"from_ms": from_ms, "to_ms": to_ms}).result

    def sessions(client: Client, owner: str) -> list[tuple[int, int, object]]:
        return [(each.start_ms, each.end_ms, each.value) for each in client.fetch_sessions(store.name, owner)]

    def assert_all(client: Client) -> None:
        assert longest(client, key) == [7_000, "from 2000"]
        assert longest(client, key, to_ms=8_999) == [1_000, "from 0"], "a session's time is its end"
        assert longest(client, key, from_ms=9_001) == [1_000, "from 20000"]
        assert longest(client, other) == [1_000, "from 3000"]
        assert longest(client, "nobody") is None
        assert sessions(client, key) == [(start, end, f"from {start}") for start, end in times[key]]
        assert sessions(client, other) == [(3_000, 4_000, "from 3000")]
        with pytest.raises(LookupFailure, match=r"FetchSessions, .*QueryStore") as refused:
            client.get(store.name, key)
        assert refused.value.reason is Reason.WRONG_STORE_KIND

    with asking(node) as client:
        poll_until(lambda: len(sessions(client, key)) == 3 and sessions(client, other), 20, "the sessions")
        assert_all(client)
    node.kill()
    node.start()
    shared.wait_running([node])
    assert sum(store.replica(partition).restored_records for partition in range(2)) == (4 if in_memory else 0)
    with asking(node) as client:
        assert_all(client)
        # It is merged into another, and time goes on.
        put(key, 2_000, 9_000, None)
        put(key, 2_000, 65_000, b"merged")
        poll_until(lambda: longest(client, key, to_ms=90_000) == [63_000, "merged"], 20, "the merged session")
        assert sessions(client, key) == [(2_000, 65_000, "merged"), (20_000, 21_000, "from 20000")]


def test_a_built_in_store_has_no_queries_of_its_own(shared: Fleet, unique_name: Callable[[str], str]) -> None:
    store = new_store(shared, shared.processes[0], unique_name("store"))
    match = "it has Get, BatchGet, Scan, Count"
    with asking(store.node) as client, pytest.raises(LookupFailure, match=match) as failure:
        client.query_store(store.name, "k", "estimate")
    assert failure.value.reason is Reason.WRONG_STORE_KIND
