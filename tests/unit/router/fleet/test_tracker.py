"""From the topics' records to tables, to GetFleet and LocateKey, and to the numbers people watch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

import router.cli
import router.control_topics
import router.server
from router.fleet.current_table import CurrentTable
from router.fleet.table import RoutingTable
from router.fleet.tracker import FleetTracker
from statehouse.cli.main import app
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import EngineError
from statehouse.runtime.waiting import StopSignals
from statehouse.settings import RouterSettings
from statehouse.v1 import errors_pb2, fleet_service_pb2, fleet_service_pb2_grpc, types_pb2
from tests.support.panic import Panic
from tests.support.polling import poll_until_async
from tests.unit.router.fake_nodes import Fleet
from tests.unit.router.fleets import STORE, assignment, member, report

Start = Callable[..., Awaitable[Fleet]]


class Tracked:
    """A tracker and the tables it made."""

    def __init__(self, session_timeout_s: float = 60.0) -> None:
        self.tables: list[RoutingTable] = []
        self.tracker = FleetTracker(CurrentTable(), self.tables.append, session_timeout_s=session_timeout_s)

    def caught_up(self) -> None:
        self.tracker.on_caught_up("assignment")
        self.tracker.on_caught_up("members")

    async def table(self, count: int) -> RoutingTable:
        await poll_until_async(lambda: len(self.tables) >= count, 10, f"table {count}")
        return self.tables[-1]


async def test_no_table_before_both_topics_have_been_read() -> None:
    tracked = Tracked()
    for epoch in (1, 2, 3):  # a log that was not compacted
        tracked.tracker.on_assignment(assignment([TaskAssignment("a")], epoch))
    tracked.tracker.on_caught_up("assignment")
    assert tracked.tracker._pending is None
    tracked.tracker.on_caught_up("members")
    assert (await tracked.table(1)).epoch == 3
    assert len(tracked.tables) == 1


async def test_a_burst_of_heartbeats_makes_one_table() -> None:
    tracked = Tracked()
    tracked.caught_up()
    tracked.tracker.on_assignment(assignment([TaskAssignment("a")]))
    for number in range(100):
        tracked.tracker.on_member(member(f"n{number}", {0: report()}))
    assert len((await tracked.table(1)).nodes) == 100
    assert len(tracked.tables) == 1


@pytest.mark.feature("members-topic-nodes")
async def test_a_tombstone_removes_a_member_and_silence_does_not() -> None:
    tracked = Tracked(session_timeout_s=0.0)
    tracked.caught_up()
    tracked.tracker.on_assignment(assignment([TaskAssignment("a")]))
    tracked.tracker.on_member(member("a"), age_s=3_600.0)
    assert "a" in (await tracked.table(1)).nodes
    age_s = tracked.tracker.heartbeat_age_s("a")
    assert age_s is not None
    assert age_s >= 3_600
    tracked.tracker.on_member_left("a")
    tracked.tracker.on_member_left("never there")
    assert "a" not in (await tracked.table(2)).nodes
    assert tracked.tracker.heartbeat_age_s("a") is None


async def test_who_is_long_gone_is_forgotten_unless_the_assignment_names_it() -> None:
    tracked = Tracked(session_timeout_s=1.0)
    tracked.caught_up()
    tracked.tracker.on_assignment(assignment([TaskAssignment("a", ("b",))]))
    for name in "abc":
        tracked.tracker.on_member(member(name), age_s=100.0)
    assert set((await tracked.table(1)).nodes) == {"a", "b", "c"}, "nobody was heard of since"
    tracked.tracker.on_member(member("b"))
    assert set((await tracked.table(2)).nodes) == {"a", "b"}
    assert tracked.tracker.heartbeat_age_s("c") is None, "nothing of it is kept"
    assert tracked.tracker.heartbeat_age_s("a") is not None
    tracked.tracker.on_member(member("c"))
    assert set((await tracked.table(3)).nodes) == {"a", "b", "c"}


@pytest.mark.parametrize(("session_timeout_s", "wins"), [(60.0, "new"), (0.0, "old")])
async def test_of_two_processes_the_later_started_counts_unless_it_fell_silent(
    session_timeout_s: float, wins: str
) -> None:
    tracked = Tracked(session_timeout_s)
    tracked.caught_up()
    tracked.tracker.on_assignment(assignment([TaskAssignment("a")]))
    tracked.tracker.on_member(member("a", incarnation="new", started_at_ms=2))
    tracked.tracker.on_member(member("a", incarnation="old", started_at_ms=1))
    assert (await tracked.table(1)).nodes["a"].incarnation == wins


@pytest.mark.feature("getnode-drain-grpc")
async def test_health_follows_the_first_table() -> None:
    fleet = Fleet()
    await fleet.router.start()
    try:
        stub = health_pb2_grpc.HealthStub(fleet.channel)

        async def statuses() -> list[int]:
            names = ("", "statehouse.v1.QueryService", "statehouse.v1.FleetService")
            return [(await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names]

        assert await statuses() == [health_pb2.HealthCheckResponse.NOT_SERVING] * 3
        await fleet.publish(TaskAssignment())
        assert await statuses() == [health_pb2.HealthCheckResponse.SERVING] * 3
    finally:
        await fleet.stop()


class Silent:
    """Readers of control topics that have heard nothing for so long."""

    def __init__(self, age_s: list[float | None]) -> None:
        self._age_s = age_s

    def start(self) -> None: ...

    async def stop(self) -> None: ...

    def silence_s(self) -> float | None:
        return self._age_s[0]


async def test_readiness_follows_the_age_of_the_table() -> None:
    fleet = Fleet(ready_silence_max_ms=60_000)
    age_s: list[float | None] = [None]
    fleet.router.first.readers = Silent(age_s)
    await fleet.router.start()
    stub = health_pb2_grpc.HealthStub(fleet.channel)

    async def statuses() -> list[int]:
        names = ("liveness", "", "readiness")
        return [(await stub.Check(health_pb2.HealthCheckRequest(service=name))).status for name in names]

    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    try:
        assert await statuses() == [serving, not_serving, not_serving]
        age_s[0] = 0.0
        await fleet.publish(TaskAssignment())
        assert await statuses() == [serving, serving, serving]
        age_s[0] = 61.0
        await fleet.publish(TaskAssignment(), epoch=2)  # each table is judged immediately
        assert await statuses() == [serving, serving, not_serving]
        age_s[0] = 1.0
        await fleet.publish(TaskAssignment(), epoch=3)
        fleet.router.leave()
        assert await statuses() == [serving, not_serving, not_serving]
    finally:
        await fleet.stop()


@pytest.mark.feature("getfleet-liststores-listnodes")
async def test_the_fleet_is_described(start: Start) -> None:
    fleet = await start("a", "b")
    await fleet.nodes["a"].kill()
    assert await fleet.get() == "b"
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    answer = await stub.GetFleet(fleet_service_pb2.GetFleetRequest())
    assert (answer.application_id, answer.epoch, [store.name for store in answer.stores]) == ("app", 1, [STORE])
    assert [(node.host.instance_id, node.reachable) for node in answer.nodes] == [("a", False), ("b", True)]
    assert all(node.heartbeat_age_ms >= 0 for node in answer.nodes)
    (task,) = answer.tasks
    assert (task.task, task.active, list(task.standbys)) == ("0_0", "a", ["b"])
    assert [(item.instance_id, item.position, item.lag) for item in task.replicas] == [("a", 10, 0), ("b", 10, 0)]


async def test_a_keys_place_shows_every_candidate_with_its_verdict(start: Start) -> None:
    fleet = await start("a", "b")
    await fleet.nodes["a"].kill()
    assert await fleet.get() == "b"
    stub = fleet_service_pb2_grpc.FleetServiceStub(fleet.channel)
    request = fleet_service_pb2.LocateKeyRequest(store=STORE, key=types_pb2.Key(text="k"))
    answer = await stub.LocateKey(request)
    assert (answer.route.partition, answer.route.epoch, answer.route.active.instance_id) == (0, 1, "a")
    assert answer.route.active.port == fleet.nodes["a"].port
    assert [(item.host.instance_id, item.eligible, item.reason) for item in answer.candidates] == [
        ("b", True, errors_pb2.ERROR_REASON_UNSPECIFIED),
        ("a", False, errors_pb2.ERROR_REASON_UNREACHABLE),
    ]


async def test_attempts_are_counted_by_reason(start: Start) -> None:
    fleet = await start("a", "b")
    await fleet.nodes["a"].kill()
    await fleet.get()
    registry = fleet.router.metrics.registry
    counted = {
        reason: registry.get_sample_value("statehouse_router_attempts_total", {"reason": reason})
        for reason in ("OK", "UNREACHABLE")
    }
    assert counted == {"OK": 1, "UNREACHABLE": 1}
    assert registry.get_sample_value("statehouse_router_lookup_duration_seconds_count", {"store": STORE}) == 1


async def test_a_lookup_under_way_ends_when_the_router_stops(start: Start) -> None:
    fleet = await start("a", attempt_timeout_ms=5_000)
    fleet.nodes["a"].freeze()
    lookup = asyncio.create_task(fleet.get())
    await asyncio.wait([lookup], timeout=0.05)
    stopping = asyncio.create_task(fleet.router.stop(grace_s=5.0))
    fleet.nodes["a"].thaws.set()
    assert await lookup == "a"
    await stopping


async def test_a_broken_reader_ends_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, *_args: object, on_broken: Callable[[Exception], None], **_more: object) -> None:
            self.start = lambda: on_broken(RuntimeError("a defect"))

        def seconds_since_contact(self) -> float | None: ...

        def stop(self) -> None: ...

    monkeypatch.setattr(router.control_topics, "ControlLogReader", Broken)
    settings = RouterSettings(application_id="app", router_port=0, proxy="none")
    with pytest.raises(RuntimeError, match="a defect"):
        await asyncio.wait_for(router.server.serve(settings, StopSignals()), 10)


@pytest.mark.parametrize("defect", [RuntimeError("a defect"), Panic("a defect")], ids=["error", "panic"])
@pytest.mark.parametrize("where", ["a record", "the table"])
async def test_a_defect_in_what_a_record_leads_to_ends_the_router(
    monkeypatch: pytest.MonkeyPatch, where: str, defect: BaseException
) -> None:
    class Reader:
        """Delivers one record of an assignment, and says that this is all."""

        caught_up = True

        def __init__(
            self,
            _bootstrap: str,
            topic: str,
            on_record: Callable[..., None],
            on_contact: Callable[[], None],
            **_more: object,
        ) -> None:
            self._records = [(b"k", b"v", 0)] if topic.endswith("assignment") else []
            self._on_record, self._on_contact = on_record, on_contact

        def start(self) -> None:
            for record in self._records:
                self._on_record(*record)
            self._on_contact()

        def seconds_since_contact(self) -> float | None: ...

        def stop(self) -> None: ...

    def breaks(*_: object, **__: object) -> None:
        raise defect

    monkeypatch.setattr(router.control_topics, "ControlLogReader", Reader)
    plan = assignment([TaskAssignment("a")])
    monkeypatch.setattr(router.control_topics.AssignmentReader, "feed", lambda *_: plan)
    if where == "a record":
        monkeypatch.setattr(FleetTracker, "on_assignment", breaks)
    else:
        monkeypatch.setattr(router.fleet.tracker, "compile_table", breaks)
    settings = RouterSettings(application_id="app", router_port=0, proxy="none")
    with pytest.raises((RuntimeError, EngineError), match="a defect"):
        await asyncio.wait_for(router.server.serve(settings, StopSignals()), 10)


def test_the_command_reads_flags_and_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATEHOUSE_APPLICATION_ID", raising=False)
    monkeypatch.delenv("STATEHOUSE_CONFIG", raising=False)
    ran: list[RouterSettings] = []
    monkeypatch.setattr(router.cli, "run", ran.append)
    refused = CliRunner().invoke(app, ["router"])
    assert refused.exit_code == 2
    assert "application_id" in refused.output
    assert CliRunner().invoke(app, ["router", "--application-id", "app", "--attempt-timeout-ms", "99"]).exit_code == 0
    assert [(settings.application_id, settings.attempt_timeout_ms) for settings in ran] == [("app", 99)]
