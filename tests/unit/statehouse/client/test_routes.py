"""From a router's description of the fleet to the nodes to ask."""

from __future__ import annotations

from typing import Any

import pytest

from statehouse.client.routes import FleetRoutes, KeyRoute
from statehouse.contract.partitioning import partition_for
from statehouse.v1 import fleet_service_pb2, types_pb2

COPY = {"role": types_pb2.REPLICA_ROLE_GLOBAL, "state": "running"}


def described(**store: Any) -> fleet_service_pb2.GetFleetResponse:
    """Four partitions: of a, of b, of nobody, and of one whose address isn't known; and a global store."""
    fleet = fleet_service_pb2.GetFleetResponse(epoch=7)
    fields = {"name": "s", "key_serde": "long", "partitioner": "murmur2", "partition_count": 4, "sub_topology": 1}
    fleet.stores.add(**{**fields, **store})
    fleet.stores.add(
        **{"name": "g", "key_serde": "string", "partitioner": "murmur2", "partition_count": 3, "global": True}
    )
    for number, name in enumerate(("a", "b", "c")):
        host = types_pb2.Host(instance_id=name, host="::1", port=7101 + number)
        fleet.nodes.add(host=host, incarnation="1st", state="PENDING_SHUTDOWN" if name == "c" else "RUNNING")
    for number, active in enumerate(("a", "b", "", "unknown")):
        task = fleet.tasks.add(task=f"1_{number}", active=active, standbys=["b"])
        task.replicas.add(instance_id="b", role=types_pb2.REPLICA_ROLE_STANDBY, state="running")
    copies = fleet.tasks.add(task="global/g")
    for name in ("a", "b", "c"):
        copies.replicas.add(instance_id=name, **COPY)
    return fleet


def in_partition(number: int) -> types_pb2.Key:
    """Return a key of the store, as people type it."""
    return next(
        types_pb2.Key(text=str(each)) for each in range(100) if partition_for(each.to_bytes(8, "big"), 4) == number
    )


def asked(route: KeyRoute | None) -> list[str]:
    return [] if route is None else [node.instance_id for node in route.nodes]


@pytest.mark.feature("keys-text-parsed")
def test_a_key_leads_to_its_active_and_to_nobody_else() -> None:
    routes = FleetRoutes.of(described())
    assert [asked(routes.route("s", in_partition(number))) for number in range(4)] == [["a"], ["b"], [], []]
    route = routes.route("s", in_partition(0))
    assert route is not None
    assert (route.task, route.nodes[0].target, routes.epoch) == ("1_0", "[::1]:7101", 7)
    number = next(each for each in range(100) if partition_for(each.to_bytes(8, "big"), 4) == 1)
    assert asked(routes.route("s", types_pb2.Key(raw=number.to_bytes(8, "big")))) == ["b"]


def test_a_global_store_is_at_every_node_that_answers_and_stays() -> None:
    fleet = described()
    assert asked(FleetRoutes.of(fleet).route("g", types_pb2.Key(text="k"))) == ["a", "b"]
    fleet.tasks[-1].replicas[0].state = "restoring"
    assert asked(FleetRoutes.of(fleet).route("g", types_pb2.Key(text="k"))) == ["b"]


@pytest.mark.parametrize(
    ("store", "key", "spec"),
    [
        ("other", types_pb2.Key(text="1"), {}),
        ("s", types_pb2.Key(text="no number"), {}),
        ("s", types_pb2.Key(), {}),
        ("s", types_pb2.Key(text="1"), {"partitioner": "of a newer version"}),
        ("s", types_pb2.Key(text="1"), {"partitioner": ""}),
        ("s", types_pb2.Key(text="1"), {"key_serde": "of a newer version"}),
        ("s", types_pb2.Key(text="1"), {"partition_count": 0}),
    ],
)
def test_what_it_cant_place_is_left_to_the_router(store: str, key: types_pb2.Key, spec: dict[str, Any]) -> None:
    assert FleetRoutes.of(described(**spec)).route(store, key) is None


def test_another_run_of_a_process_is_another_node() -> None:
    before, after = described(), described()
    after.nodes[0].incarnation = "2nd"
    assert len(FleetRoutes.of(before).nodes - FleetRoutes.of(after).nodes) == 1
