"""A changed topology is a rebalance like any other: what it doesn't touch is served all the time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from processor.ownership.declarations import StoreDeclaration
from statehouse.contract.topology import TaskId, changelog_topic
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.kafka import create_topic, produce
from tests.support.lookups import LookupLoad
from tests.support.ownership import Controlled, answered, controller_of, settled
from tests.support.polling import poll_until

PARTITIONS = 2
RATE = 50
SESSION_TIMEOUT_S = 20.0


def test_stores_and_standbys_come_change_and_go_beside_what_is_served(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with Fleet(
        kafka.bootstrap,
        unique_name("app"),
        tmp_path,
        partitions=PARTITIONS,
        session_timeout_ms=int(SESSION_TIMEOUT_S * 1000),
    ) as fleet:
        keys = [key for partition in range(PARTITIONS) for key in fleet.keys_in(partition, 5)]
        fleet.put({key: f"v-{key}" for key in keys})
        extra = StoreDeclaration("extra", "other", 1, changelog_topic(fleet.application_id, "extra"))
        extra = replace(extra, value_serde="string")
        create_topic(fleet.bootstrap, extra.changelog_topic, 1, {"cleanup.policy": "compact"})
        produce(fleet.bootstrap, extra.changelog_topic, [(b"k", b"7")])
        nodes = {name: fleet.node(name, state_cleanup_delay_ms=500) for name in ("a", "b")}
        router = fleet.router()
        with controller_of(fleet, SESSION_TIMEOUT_S) as controlled:
            poll_until(lambda: settled(controlled, nodes, set(nodes)), 60, "the fleet to settle")
            poll_until(lambda: answered(router, keys[0]), 30, "the router to answer")
            placed = holders_of_counts(controlled)
        with LookupLoad(f"127.0.0.1:{router.port}", STORE, keys, RATE) as load:
            with controller_of(fleet, SESSION_TIMEOUT_S, beside=[extra]) as controlled:
                assert poll_until(lambda: found(router, "k"), 30, "the new store").value.text == "7"
                poll_until(lambda: settled(controlled, nodes, set(nodes)), 30, "the new store's copies")
                assert holders_of_counts(controlled) == placed
                assert all((fleet.directory / name / fleet.application_id / "1_0" / "extra").is_dir() for name in nodes)

            changed = replace(extra, value_serde="long", in_memory=True)
            produce(fleet.bootstrap, extra.changelog_topic, [(b"k", (7).to_bytes(8, "big"))])
            with controller_of(fleet, SESSION_TIMEOUT_S, beside=[changed]) as controlled:
                poll_until(
                    lambda: (answer := found(router, "k")) is not None and answer.value.long == 7, 30, "another serde"
                )
                poll_until(lambda: settled(controlled, nodes, set(nodes)), 30, "the copies in memory")
                assert holders_of_counts(controlled) == placed

            with controller_of(fleet, SESSION_TIMEOUT_S, beside=[changed], num_standby_replicas=0) as controlled:
                poll_until(lambda: standbys(controlled) == {0}, 30, "the standbys to be dropped")
                assert actives_of(holders_of_counts(controlled)) == actives_of(placed)
            with controller_of(fleet, SESSION_TIMEOUT_S, beside=[changed]) as controlled:
                poll_until(lambda: settled(controlled, nodes, set(nodes)), 30, "standbys again")
                assert holders_of_counts(controlled) == placed

            third = replace(extra, name="third", query="a-third")
            with controller_of(fleet, SESSION_TIMEOUT_S, beside=[third]) as controlled:
                poll_until(lambda: settled(controlled, nodes, set(nodes)), 30, "one store to follow another")
                assert {task.sub_topology for task in controlled.tasks} == {0, 2}, "1 is not used again"
                assert holders_of_counts(controlled) == placed
                folders = [fleet.directory / name / fleet.application_id / "1_0" for name in nodes]
                poll_until(lambda: not any(map(Path.exists, folders)), 30, "the removed store's folders to be removed")
            seen = len(load.answers())
            poll_until(lambda: len(load.answers()) > seen + RATE, 30, "lookups after all that")
        assert not load.failures
        for lookup in load.history:
            assert lookup.response is not None
            assert lookup.response.value.text == f"v-{lookup.key}"


def holders_of_counts(controlled: Controlled) -> dict[TaskId, tuple[str, ...]]:
    tasks = controlled.tasks
    return {task: holders.replicas for task, holders in tasks.items() if task.sub_topology == 0}


def actives_of(tasks: dict[TaskId, tuple[str, ...]]) -> dict[TaskId, str]:
    return {task: active for task, (active, *_) in tasks.items()}


def standbys(controlled: Controlled) -> set[int]:
    """How many standbys tasks have."""
    return {len(holders.standbys) for holders in controlled.tasks.values()}


def found(router: ServerProcess, key: str) -> query_service_pb2.GetResponse | None:
    """Ask once: between two questions the store may be taken from its nodes, to be put up anew."""
    try:
        return router.get(key, store="extra")
    except LookupFailure:
        return None
