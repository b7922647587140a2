"""Custom stores on real nodes, asked directly and through a router: the example's sketches, and plug-ins that fail."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from word_sketch.sketches import new_sketch

from query_service.stores.custom import GROUP
from statehouse.assignment import TaskAssignment
from statehouse.client import Client
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import produce
from tests.support.plugins import install
from tests.support.polling import poll_until

CHATTY = """
from query_service.stores.key_value import KeyValueStore

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
"""


@pytest.fixture
def new_fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Callable[..., Fleet]:
    return lambda **spec: Fleet(kafka.bootstrap, unique_name("app"), tmp_path, **spec)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processes that a test starts find our plug-ins."""
    folder = tmp_path / "packages"
    kinds = {"chatty": "chatty:Chatty", "unlicensed": "chatty:unlicensed"}
    install(folder, "chatty", GROUP, kinds, CHATTY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


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
            answer = client.query_store(STORE, next(iter(channels)), "estimate", {"item": "a"})
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


@pytest.mark.usefixtures("plugins")
def test_what_a_query_raises_fails_the_call_alone(new_fleet: Callable[..., Fleet]) -> None:
    with new_fleet(kind="chatty") as fleet:
        node = fleet.node("n1")
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        fleet.wait_running([node])
        key, other = fleet.keys_in(0)[0], fleet.keys_in(1)[0]
        with asking(node) as client:
            arguments = {"text": "ü", "numbers": [1, 2.5, None], "deep": {"yes": True}}
            found = client.query_store(STORE, key, "echo", arguments).result
            assert found == {"key": key.encode().hex(), **arguments}
            for name, message in (("raise", "KeyError: 'oh'"), ("nonsense", "object is not JSON")):
                with pytest.raises(LookupFailure, match=message) as failure:
                    client.query_store(STORE, key, name)
                assert failure.value.reason is Reason.INTERNAL
            assert client.query_store(STORE, key, "echo").result == {"key": key.encode().hex()}

            # A store that raises while it applies stops its task, and no other.
            fleet.put({key: "poison", other: "fine"})
            task = poll_until(lambda: [t for t in node.node().tasks if t.state == "error"], 20, "the task to stop")[0]
            assert (task.task, "RuntimeError: poisoned" in task.error) == ("0_0", True)
            poll_until(lambda: client.get(STORE, other).found, 20, "the other partition's value")


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize(
    ("kind", "error"), [("unlicensed", "RuntimeError: no licence"), ("unheard-of", "'unheard-of'.*'statehouse.stores'")]
)
def test_a_kind_that_cannot_be_opened_puts_the_task_in_error(
    new_fleet: Callable[..., Fleet], kind: str, error: str
) -> None:
    with new_fleet(kind=kind) as fleet:
        node = fleet.node("n1")
        fleet.assign(TaskAssignment("n1"), TaskAssignment(None))
        task = poll_until(lambda: [t for t in node.node().tasks if t.state == "error"], 20, "the task to stop")[0]
        with asking(node) as client, pytest.raises(LookupFailure, match=error) as failure:
            client.query_store(STORE, fleet.keys_in(0)[0], "echo")
        assert failure.value.reason is Reason.TASK_FAILED
        assert kind in task.error


def test_a_built_in_store_has_no_queries_of_its_own(new_fleet: Callable[..., Fleet]) -> None:
    with new_fleet() as fleet:
        node = fleet.node("n1")
        fleet.assign(TaskAssignment("n1"), TaskAssignment("n1"))
        fleet.wait_running([node])
        with asking(node) as client, pytest.raises(LookupFailure, match="it has Get, BatchGet, Scan, Count") as failure:
            client.query_store(STORE, "k", "estimate")
        assert failure.value.reason is Reason.WRONG_STORE_KIND
