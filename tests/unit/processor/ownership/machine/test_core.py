"""The controller's rules, one test each, on a clock that only the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.core import OwnershipCore
from processor.ownership.machine.refusals import REFUSALS_MIN, SPAN_S, NodeAddress, Seen, Sighting
from processor.ownership.machine.sessions import MemberSessions
from processor.ownership.planning.model import ReplicaView
from processor.ownership.settings import OwnershipSettings
from statehouse.contract.assignment import Assignment, encode
from statehouse.contract.membership import Member, ReplicaReport, StorePosition
from statehouse.contract.topology import Role, TaskId
from statehouse.errors import ConfigurationError
from tests.support.members import FakeMember
from tests.support.settings import ownership, planner

SETTINGS = ownership(
    heartbeat_interval_ms=1_000,
    session_timeout_ms=10_000,
    initial_rebalance_delay_ms=1_000,
    num_standby_replicas=1,
    max_warmup_replicas=2,
)
TASK = TaskId(0, 0)
_QUIET_S = 2 * SETTINGS.linger_s


def scores(partitions: int = 4, name: str = "scores", query: str = "leaderboard") -> StoreDeclaration:
    return StoreDeclaration(name, query, partitions, f"app-{name}-changelog")


class Bench:
    """A core, its clock, its fleet, and everything it published."""

    def __init__(
        self,
        *stores: StoreDeclaration,
        settings: OwnershipSettings = SETTINGS,
        restored: Assignment | None = None,
        seen_before: Sequence[FakeMember] = (),
    ) -> None:
        self.now = 1_000.0
        self.core = OwnershipCore(settings, "test")
        self.core.restore(restored)
        self.core.declare(stores or (scores(),))
        for member in seen_before:
            self.core.heartbeat(member.beat(), self.now)
        self.core.start(self.now)
        self.published: list[Assignment] = []
        self._published_at = self.now

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has followed for longer than a hand-over lingers, or a heartbeat takes."""
        return self.now - self._published_at >= _QUIET_S

    @property
    def assignment(self) -> Assignment:
        return self.core.assignment

    def tick(self) -> Assignment | None:
        proposed = self.core.tick(self.now)
        if proposed is not None:
            complete, _records = encode(self.core.assignment, proposed)
            self.core.published(complete, self.now)
            self.published.append(complete)
            self._published_at = self.now
        return proposed

    def run(self, seconds: float, *members: FakeMember, restoring: bool = False, frozen: bool = False) -> None:
        """Let time pass with these members alive, each following what is published unless `frozen`."""
        for _ in range(round(seconds / 0.5)):
            self.now += 0.5
            for member in members:
                if not frozen:
                    member.follow(self.assignment, restored=not restoring)
                self.core.heartbeat(member.beat(), self.now)
            self.tick()

    def settled(self, *members: FakeMember) -> Bench:
        self.run(20, *members)
        assert self.is_quiet
        self.published.clear()
        return self

    def actives(self) -> dict[TaskId, str | None]:
        return {task: holders.active for task, holders in self.assignment.tasks.items()}


def fleet(count: int) -> list[FakeMember]:
    return [FakeMember(f"n{number}") for number in range(count)]


# --- the topology ---


def test_the_topology_is_published_before_anybody_is_there() -> None:
    bench = Bench()
    bench.tick()
    assert bench.assignment.epoch == 1
    assert bench.assignment.stores["scores"].sub_topology == 0
    assert [holders.active for holders in bench.assignment.tasks.values()] == [None] * 4
    assert "topology" in bench.assignment.reason
    bench.run(30)
    assert bench.assignment.epoch == 1


@pytest.mark.feature("stores-query-many")
def test_stores_of_a_query_with_equal_partitions_share_a_sub_topology() -> None:
    bench = Bench(scores(4), scores(4, "ranks"), scores(2, "few"), scores(4, "other", "another-query"))
    bench.tick()
    numbers = {name: spec.sub_topology for name, spec in bench.assignment.stores.items()}
    assert numbers["scores"] == numbers["ranks"]
    assert len({numbers["scores"], numbers["few"], numbers["other"]}) == 3
    assert len(bench.assignment.tasks) == 10


@pytest.mark.feature("stores-query-many")
def test_numbers_are_kept_and_never_reused() -> None:
    bench = Bench(scores(4), scores(2, "few"))
    bench.tick()
    few = bench.assignment.stores["few"].sub_topology
    without = Bench(scores(4), restored=bench.assignment)
    without.tick()
    assert set(without.assignment.stores) == {"scores"}
    assert all(task.sub_topology != few for task in without.assignment.tasks)
    later = Bench(scores(4), scores(3, "new", "a-query"), restored=without.assignment)
    later.tick()
    assert later.assignment.stores["new"].sub_topology not in {few, later.assignment.stores["scores"].sub_topology}
    back = Bench(scores(4), scores(2, "few"), restored=later.assignment)
    back.tick()
    assert back.assignment.stores["few"].sub_topology == few


@pytest.mark.feature("store-partition-count")
def test_another_partition_count_is_refused_with_the_remedy() -> None:
    bench = Bench(scores(4))
    bench.tick()
    with pytest.raises(ConfigurationError, match="declare partitions=4, or give the store a new name, or reset"):
        Bench(scores(6), restored=bench.assignment)
    assert bench.assignment.epoch == 1


@pytest.mark.parametrize("stores", [(scores(), scores()), (scores(0),)])
def test_declarations_that_make_no_sense_are_refused(stores: tuple[StoreDeclaration, ...]) -> None:
    with pytest.raises(ConfigurationError):
        Bench(*stores)


# --- the first plan ---


def test_a_fleet_that_starts_together_is_planned_once() -> None:
    bench, members = Bench(), fleet(3)
    bench.tick()
    for member in members:
        bench.core.heartbeat(member.beat(), bench.now)
        bench.now += 0.3
        bench.tick()
    assert bench.assignment.epoch == 1
    bench.run(1, *members)
    assert bench.assignment.epoch == 2
    assert all(holders.active and len(holders.standbys) == 1 for holders in bench.assignment.tasks.values())
    assert all(holders.reason for holders in bench.assignment.tasks.values())
    bench.run(20, *members)
    assert bench.assignment.epoch == 2, "complete at once"


def test_a_fleet_that_was_gone_entirely_is_awaited_like_a_new_one() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    before = bench.actives()
    bench.run(15)
    assert bench.actives() == before, "the last holders are the ones that have the state"
    for member in members:
        member.restart()
        bench.core.heartbeat(member.beat(), bench.now)
        bench.now += 0.3
        bench.tick()
    bench.run(5, *members)
    assert bench.actives() == before


# --- who lives ---


def test_a_silent_member_is_dead_after_the_session_timeout_and_its_standbys_take_over() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    before = dict(bench.assignment.tasks)
    bench.run(9, *members[1:])
    assert not bench.published
    bench.run(2, *members[1:])
    [first, *_] = bench.published
    assert "n0 was not heard of for 10 s" in first.reason
    for task, was in before.items():
        now = first.tasks[task]
        assert "n0" not in now.replicas
        assert now.active in was.replicas
        assert len(now.standbys) == 1
        if was.active == "n0":
            assert "n0 is gone" in now.reason
        elif "n0" not in was.replicas:
            assert now.reason == was.reason


def test_a_member_that_is_back_is_made_active_only_once_it_hears() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    deaf = next(member for member in members if member.name == bench.actives()[TASK])
    others = [member for member in members if member is not deaf]
    bench.run(20, *others)
    epoch = bench.assignment.epoch
    for _ in range(20):  # its heartbeats get through: it says what it believed before, and nobody knows how old that is
        bench.core.heartbeat(deaf.beat(), bench.now)
        bench.run(0.5, *others)
    assert bench.assignment.epoch > epoch, "it is a member again"
    assert deaf.name not in bench.actives().values()
    bench.run(20, *members)
    assert deaf.name in bench.actives().values()


@pytest.mark.feature("members-topic-nodes")
def test_a_member_that_left_is_replaced_at_once() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.core.left("n0", bench.now)
    bench.run(0.5, *members[1:])
    assert bench.published[0].reason == "n0 left"
    assert "n0" not in {node for holders in bench.assignment.tasks.values() for node in holders.replicas}


def test_a_controller_that_finds_a_newer_ones_assignment_is_superseded() -> None:
    core = OwnershipCore(SETTINGS, "ours")
    core.restore(Assignment(5, controller="before"))
    assert not core.is_superseded_by(None)
    assert not core.is_superseded_by(Assignment(5, controller="before")), "nothing new"
    assert not core.is_superseded_by(Assignment(6, controller="ours")), "its publication was not known to be seen"
    assert core.is_superseded_by(Assignment(6, controller="another"))


def test_a_heartbeat_read_twice_keeps_nobody_alive() -> None:
    members = fleet(2)
    bench = Bench().settled(*members)
    old = members[0].beat()
    bench.core.heartbeat(old, bench.now)
    for _ in range(24):
        bench.core.heartbeat(old, bench.now)
        bench.run(0.5, members[1])
    assert set(bench.actives().values()) == {"n1"}


def test_the_newer_incarnation_wins() -> None:
    members = fleet(2)
    bench = Bench().settled(*members)
    older = FakeMember("n0", incarnation="zombie", started_at_ms=1, state="PENDING_SHUTDOWN")
    for _ in range(6):
        bench.core.heartbeat(older.beat(), bench.now)
        bench.run(0.5, *members)
    assert not bench.published
    bench.run(11, members[1])
    bench.published.clear()
    bench.core.heartbeat(older.beat(), bench.now)
    bench.run(2, members[1])
    assert not bench.published, "not even when the newer one is silent"


def test_a_bounce_within_the_session_timeout_moves_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.run(5, *members[1:])
    members[0].restart()
    bench.run(3, *members, frozen=True)
    members[0].state = "RUNNING"
    bench.run(20, *members)
    assert not bench.published


def test_a_member_that_bounced_and_does_not_reopen_its_state_loses_its_actives() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    members[0].restart()
    for task in members[0].replicas:
        members[0].report(task, position=0, state="restoring")
    bench.run(9, *members, frozen=True)
    assert not bench.published
    bench.run(3, *members, frozen=True)
    assert "n0" not in bench.actives().values()
    assert "has not reopened" in bench.published[0].reason


def test_a_second_bounce_gets_no_second_session_timeout() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    for _ in range(4):
        members[0].restart()
        bench.run(3, *members, frozen=True)
    assert "n0" not in bench.actives().values()


def test_a_bounce_before_a_lost_contact_gets_one_session_timeout_after_it_and_no_more() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    members[0].restart()
    for task in members[0].replicas:
        members[0].report(task, position=0, state="restoring")
    bench.run(2, *members, frozen=True)
    bench.core.contact_lost()
    bench.run(30)
    bench.core.contact_regained(bench.now)
    bench.run(9, *members, frozen=True)
    assert not bench.published
    bench.run(3, *members, frozen=True)
    assert "n0" not in bench.actives().values()


@pytest.mark.feature("controller-out-touch")
def test_lost_contact_times_nobody_out() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.core.contact_lost()
    bench.run(60)
    bench.core.contact_regained(bench.now)
    bench.run(8, *members[1:])
    assert not bench.published, "the one not heard of yet has its time"
    bench.run(20, *members)
    assert not bench.published


@pytest.mark.feature("controller-out-touch")
def test_a_pause_of_the_controller_times_nobody_out() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.now += 300
    bench.run(8, *members[1:])
    assert not bench.published, "the one whose heartbeats are not read yet has its time"
    bench.run(20, *members)
    assert not bench.published


def test_after_contact_the_really_dead_still_time_out() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.core.contact_lost()
    bench.run(30)
    bench.core.contact_regained(bench.now)
    bench.run(11, *members[1:])
    assert "n0" not in bench.actives().values()


# --- restart of the controller ---


def test_a_restart_publishes_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    again = Bench(restored=bench.assignment, seen_before=members)
    again.run(30, *members)
    assert not again.published


def test_a_restart_gives_members_a_full_session_before_it_plans() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    again = Bench(restored=bench.assignment, seen_before=members)
    again.run(9, *members[1:])
    assert not again.published
    again.run(3, *members[1:])
    assert "n0" not in again.actives().values()


def test_the_long_dead_are_not_revived_by_a_restart() -> None:
    members, ghost = fleet(3), FakeMember("ghost")
    bench = Bench().settled(*members)
    again = Bench(restored=bench.assignment, seen_before=[*members, ghost])
    again.run(30, *members)
    assert not again.published
    again = Bench(restored=again.assignment, seen_before=[*members, ghost])
    again.core.left("n0", again.now)
    again.run(1, *members[1:])
    assert "n0" not in again.actives().values(), "nor are they waited for"


@pytest.mark.feature("controller-goes-after")
def test_a_restart_promotes_nobody_on_what_was_said_before_it() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0, max_warmup_replicas=1))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(2, one, two, restoring=True)
    for task in list(two.replicas):
        two.report(task, role=Role.WARM_UP)
    again = Bench(scores(2), settings=settings, restored=bench.assignment, seen_before=[one, two])
    again.run(5, one)
    assert not again.published
    again.run(1, one, two, frozen=True)
    assert set(again.actives().values()) == {"n0", "n1"}


def test_a_new_store_is_published_while_members_are_still_awaited() -> None:
    members = fleet(2)
    bench = Bench().settled(*members)
    again = Bench(scores(), scores(2, "new"), restored=bench.assignment, seen_before=members)
    again.tick()
    assert "new" in again.assignment.stores
    again.run(5, *members)
    assert all(active is not None for active in again.actives().values())


# --- hand-over ---


@pytest.mark.feature("warm-ups-before")
@pytest.mark.feature("promotion-comes-heartbeat")
def test_a_hand_over_is_two_epochs_and_lingers() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0, max_warmup_replicas=1))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(3, one, two, restoring=True)
    [warming] = bench.published
    [task] = [task for task, holders in warming.tasks.items() if holders.warm_ups]
    assert warming.tasks[task].active == "n0"
    assert warming.tasks[task].warm_ups == ("n1",)
    assert "active is to move there from n0" in warming.tasks[task].reason

    two.report(task, position=989_999, end=1_000_000, role=Role.WARM_UP)
    bench.run(2, one, two, frozen=True)
    assert bench.published == [warming], "one record too far behind"

    two.report(task, position=990_000, end=1_000_000, role=Role.WARM_UP)
    handed_at = bench.now + 0.5
    bench.run(0.5, one, two, frozen=True)
    handed = bench.published[-1].tasks[task]
    assert (handed.active, handed.standbys, handed.warm_ups) == ("n1", ("n0",), ())

    while bench.assignment.tasks[task].standbys:
        assert bench.now < handed_at + 10
        bench.run(0.5, one, two, frozen=True)
    assert bench.now - handed_at >= settings.linger_s
    assert bench.assignment.tasks[task].active == "n1"
    assert len(bench.published) == 3


@pytest.mark.feature("promotion-comes-heartbeat")
def test_restored_is_needed_besides_a_small_lag() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(1, one, two, restoring=True)
    for task in list(two.replicas):
        two.report(task, state="restoring")
    bench.run(3, one, two, frozen=True)
    assert set(bench.actives().values()) == {"n0"}


@pytest.mark.feature("one-active-partition")
def test_the_last_caught_up_replica_outlives_its_linger() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0, max_warmup_replicas=1))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(2, one, two, restoring=True)
    [task] = two.replicas
    two.report(task, role=Role.WARM_UP)
    bench.run(0.5, one, two, frozen=True)
    assert bench.actives()[task] == "n1"
    two.report(task, position=0, state="restoring", role=Role.ACTIVE)
    bench.run(30, one, two, frozen=True)
    assert "n0" in bench.assignment.tasks[task].replicas
    assert bench.actives()[task] == "n0", "and is active again, as the only one caught up"


@pytest.mark.feature("clean-stop-hands")
def test_a_leaving_node_is_drained() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    members[0].state = "PENDING_SHUTDOWN"
    before = dict(bench.assignment.tasks)
    bench.run(0.5, *members)
    [handed] = bench.published
    assert "n0 is PENDING_SHUTDOWN" in handed.reason
    for task, was in before.items():
        assert handed.tasks[task].active != "n0"
        assert handed.tasks[task].active in was.replicas
        if was.active == "n0":
            assert "n0" in handed.tasks[task].standbys, "make before break"
            assert "n0 is leaving" in handed.tasks[task].reason
    bench.run(10, *members)
    assert not any("n0" in holders.replicas for holders in bench.assignment.tasks.values())
    bench.core.left("n0", bench.now)
    bench.published.clear()
    bench.run(10, *members[1:])
    assert not bench.published


def test_an_only_copy_is_warmed_up_elsewhere_before_its_node_leaves() -> None:
    members = fleet(2)
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0, max_warmup_replicas=1))
    bench = Bench(scores(4), settings=settings).settled(*members)
    members[0].state = "PENDING_SHUTDOWN"
    bench.run(2, *members, restoring=True)
    assert list(bench.actives().values()).count("n0") == 2
    bench.run(20, *members)
    assert set(bench.actives().values()) == {"n1"}
    assert all(sum(len(h.warm_ups) for h in epoch.tasks.values()) <= 1 for epoch in bench.published)


def test_a_node_that_comes_back_gets_its_share_and_first_what_it_kept() -> None:
    members = fleet(3)
    bench = Bench(scores(12)).settled(*members)
    held = set(bench.assignment.tasks_of("n0"))
    bench.core.left("n0", bench.now)
    bench.run(10, *members[1:])
    members[0].restart("RUNNING")
    bench.run(60, *members)
    assert bench.is_quiet
    now = set(bench.assignment.tasks_of("n0"))
    assert len(now) == 8
    assert now == held
    assert list(bench.actives().values()).count("n0") == 4


# --- what replicas report ---


@pytest.mark.feature("full-disk-stops")
def test_a_failed_replica_counts_as_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    [task, *_] = [task for task, active in bench.actives().items() if active == "n0"]
    standby = bench.assignment.tasks[task].standbys[0]
    members[0].report(task, state="error", role=Role.ACTIVE)
    bench.run(0.5, *members, frozen=True)
    assert bench.actives()[task] == standby
    assert "n0 holds nothing of it" in bench.assignment.tasks[task].reason


def test_a_failed_replica_of_a_bounced_member_counts_as_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    [task, *_] = [task for task, active in bench.actives().items() if active == "n0"]
    members[0].restart()
    members[0].report(task, state="error", role=Role.ACTIVE)
    bench.run(0.5, *members, frozen=True)
    assert bench.actives()[task] != "n0"


def test_an_unknown_lag_is_not_a_small_one() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(1, one, two, restoring=True)
    for task in list(two.replicas):
        two.report(task, position=None)
    bench.run(3, one, two, frozen=True)
    assert set(bench.actives().values()) == {"n0"}


def test_lag_is_measured_against_the_largest_end_anybody_reports() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0))
    bench = Bench(scores(2), settings=settings).settled(one)
    for task in list(one.replicas):
        one.report(task, position=50_000, end=50_000, role=Role.ACTIVE)
    bench.run(1, one, frozen=True)
    two.report(TaskId(0, 0), position=100, end=100)
    two.report(TaskId(0, 1), position=100, end=100)
    bench.run(3, one, two, frozen=True)
    assert set(bench.actives().values()) == {"n0"}, "cut off at 100, it can't look fresh"


@pytest.mark.parametrize(
    ("positions", "lag"),
    [
        ({"scores": (90, 100), "ranks": (5, 10)}, 15),
        ({"scores": (100, 90), "ranks": (10, 10)}, 0),
        ({"scores": (100, 100)}, None),
        ({"scores": (100, 100), "ranks": (10, None)}, None),
        ({"scores": (100, 100), "ranks": (None, 10)}, None),
    ],
)
def test_lag_is_summed_over_the_stores_of_a_task(
    positions: dict[str, tuple[int | None, int | None]], lag: int | None
) -> None:
    sessions = MemberSessions(SETTINGS)
    sessions.use_stores({0: ("ranks", "scores")})
    sessions.start(0.0, ())
    report = ReplicaReport(Role.ACTIVE, "running", {store: StorePosition(*at) for store, at in positions.items()})
    sessions.hear(Member("n0", "first", "localhost", 9000, heartbeat=1, replicas={TASK: report}), 0.0)
    assert sessions.nodes()["n0"].replicas[TASK].lag == lag


def test_state_on_disk_serves_nobody() -> None:
    sessions = MemberSessions(SETTINGS)
    sessions.use_stores({0: ("scores",)})
    sessions.start(0.0, ())
    member = FakeMember("n0")
    member.report(TASK, state="running", role=Role.DORMANT)
    sessions.hear(member.beat(), 0.0)
    assert sessions.nodes()["n0"].replicas[TASK] == ReplicaView(restored=False, lag=0)


def test_whose_end_offsets_count() -> None:
    behind, ahead = FakeMember("n0"), FakeMember("n1")
    behind.report(TASK, position=10, end=10)
    ahead.report(TASK, position=50, end=50)

    def lag(sessions: MemberSessions) -> int | None:
        sessions.hear(behind.beat(), 11.0)
        return sessions.nodes()["n0"].replicas[TASK].lag

    sessions = MemberSessions(SETTINGS)
    sessions.use_stores({0: ("scores",)})
    sessions.start(0.0, ())
    sessions.hear(ahead.beat(), 0.0)
    assert sessions.expire(10.0)
    assert lag(sessions) == 40, "a lost member's do: its last word is no less true"
    sessions.forget("n1", 11.0)
    assert lag(sessions) == 0, "one that left has taken its word with it"
    sessions = MemberSessions(SETTINGS)
    sessions.use_stores({0: ("scores",)})
    sessions.hear(ahead.beat(), 0.0)
    sessions.start(0.0, ())
    assert lag(sessions) == 0, "one that is only remembered by the topic may speak of another changelog"


def test_busy_partitions_do_not_make_actives_take_turns() -> None:
    members = fleet(2)
    bench = Bench().settled(*members)
    offset = 100
    for _ in range(20):
        for member in members:
            offset += 50_000
            for task in list(member.replicas):
                member.report(task, position=offset, end=offset)
            bench.core.heartbeat(member.beat(), bench.now)
            bench.now += 0.25
            bench.tick()
    assert not bench.published


# --- publication ---


def test_nothing_new_publishes_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    bench.run(60, *members)
    assert not bench.published


def test_an_unpublished_proposal_comes_again_under_a_higher_epoch() -> None:
    bench = Bench()
    first, second = bench.core.tick(bench.now), bench.core.tick(bench.now)
    assert first is not None
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 2)
    bench.core.restore(first)
    assert bench.core.tick(bench.now) is None, "it was seen after all"


def test_what_an_uncertain_publication_replaced_lingers_too() -> None:
    one, two = FakeMember("n0"), FakeMember("n1")
    settings = replace(SETTINGS, planner=planner(num_standby_replicas=0, max_warmup_replicas=1))
    bench = Bench(scores(2), settings=settings).settled(one)
    bench.run(2, one, two, restoring=True)
    [task] = two.replicas
    two.report(task, role=Role.WARM_UP)
    bench.core.heartbeat(two.beat(), bench.now)
    uncertain = bench.core.tick(bench.now)
    assert uncertain is not None
    bench.core.restore(uncertain, bench.now)
    bench.run(1.5, one, two, frozen=True)
    assert bench.assignment.tasks[task].replicas == ("n1", "n0")
    bench.run(1.5, one, two, frozen=True)
    assert bench.assignment.tasks[task].replicas == ("n1",)


@pytest.mark.parametrize("event", ["dies", "leaves", "joins", "drains"])
def test_every_published_step_answers_every_task(event: str) -> None:
    members = fleet(4)
    bench = Bench(scores(8)).settled(*members[:3])
    alive = {"dies": members[1:3], "leaves": members[1:3], "joins": members, "drains": members[:3]}[event]
    if event == "leaves":
        bench.core.left("n0", bench.now)
    if event == "drains":
        members[0].state = "PENDING_SHUTDOWN"
    bench.run(60, *alive)
    assert bench.published
    assert bench.is_quiet
    for assignment in bench.published:
        assert all(holders.active in {member.name for member in alive} for holders in assignment.tasks.values())
        assert sum(len(holders.warm_ups) for holders in assignment.tasks.values()) <= 2
        assert assignment.reason


# --- damping ---


def bounce(bench: Bench, member: FakeMember, *others: FakeMember) -> None:
    """Let a member restart, and reopen all its state within three seconds."""
    member.restart()
    bench.run(1, member, *others, frozen=True)
    member.state = "RUNNING"
    bench.run(2, member, *others)


def test_a_member_that_keeps_restarting_is_held_back_until_it_is_steady() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    for _ in range(SETTINGS.flap_limit):
        bounce(bench, *members)
    assert not bench.published, "so many restarts are nothing"

    bounce(bench, *members)
    words = "n0 is held back: 4 restarts or lost sessions within 600 s, until it has been steady for 10 s"
    assert words in bench.published[0].reason
    assert bench.core.damped == {"n0": words}
    handed = bench.published[0].tasks
    assert "n0" not in {holders.active for holders in handed.values()}
    assert any(words in holders.reason and "n0" in holders.standbys for holders in handed.values()), "make before break"

    bench.run(6.5, *members)
    assert not any("n0" in holders.replicas for holders in bench.assignment.tasks.values())
    bench.published.clear()
    bench.run(20, *members)
    assert "n0 is no longer held back: it has been steady for 10 s" in bench.published[0].reason
    assert "n0" in bench.actives().values()
    assert not bench.core.damped


def test_each_further_restart_doubles_the_time_up_to_the_window() -> None:
    settings = replace(SETTINGS, flap_limit=1, flap_window_s=50.0)
    sessions, member = MemberSessions(settings), FakeMember("n0")
    sessions.start(0.0, ())
    now, held_for_s = 0.0, []
    for _ in range(7):
        sessions.hear(member.beat(), now)
        began = now
        while sessions.damped:
            now += 0.5
            sessions.hear(member.beat(), now)
            sessions.expire(now)
        held_for_s.append(now - began)
        member.restart()
    assert held_for_s == [0, 0, 10, 20, 40, 10, 10], "40 s on, only the last two still count"
    for _ in range(9):
        sessions.hear(member.beat(), now)
        member.restart()
    assert "11 restarts or lost sessions within 50 s, until it has been steady for 50 s" in sessions.damped["n0"]


def test_lost_sessions_count_like_restarts_and_the_time_counts_from_the_return() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    for _ in range(SETTINGS.flap_limit):
        bench.run(25, *members[1:])
        bench.run(5, *members)
        assert any("n0" in holders.replicas for holders in bench.assignment.tasks.values())
    bench.run(25, *members[1:])
    bench.published.clear()
    bench.run(9.5, *members)
    assert set(bench.core.damped) == {"n0"}
    assert not bench.published, "it is given nothing"
    bench.run(1, *members)
    assert "n0 is no longer held back" in bench.published[0].reason


def test_a_rolling_restart_holds_nobody_back() -> None:
    members = fleet(5)
    bench = Bench(scores(10)).settled(*members)
    for member in members:
        member.state = "PENDING_SHUTDOWN"
        bench.run(8, *members)
        bench.core.left(member.name, bench.now)
        rest = [each for each in members if each is not member]
        bench.run(2, *rest)
        member.restart("RUNNING")
        bench.run(20, *members)
        assert not bench.core.damped
    assert not any("held back" in assignment.reason for assignment in bench.published)


def test_a_fleet_that_is_held_back_as_a_whole_is_served() -> None:
    members = fleet(2)
    bench = Bench().settled(*members)
    before = bench.actives()
    for _ in range(SETTINGS.flap_limit + 1):
        for member in members:
            member.restart()
        bench.run(1, *members, frozen=True)
        bench.run(2, *members)
    assert set(bench.core.damped) == {"n0", "n1"}
    assert bench.actives() == before
    bench.run(60, *members)
    assert bench.actives() == before


def test_old_restarts_are_forgotten() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    for _ in range(2 * SETTINGS.flap_limit):
        bounce(bench, *members)
        bench.run(300, *members)
    assert not bench.published
    assert not bench.core.damped


@pytest.mark.feature("nodes-different-capacity")
def test_a_changed_capacity_is_a_cause_to_plan() -> None:
    members = fleet(3)
    bench = Bench(scores(8)).settled(*members)
    members[0].capacity = 2
    bench.run(1, *members)
    assert bench.published[0].reason == "n0 has capacity 2"
    bench.run(20, *members)
    assert sorted(Counter(bench.actives().values()).items()) == [("n0", 4), ("n1", 2), ("n2", 2)]


# --- members that are long gone ---


def test_members_that_are_long_gone_and_not_named_are_forgettable() -> None:
    members, remembered = fleet(3), FakeMember("before-our-time")
    bench = Bench(seen_before=[remembered]).settled(*members)
    bench.core.heartbeat(remembered.beat(), bench.now)
    bench.run(280, *members[1:])
    assert not bench.core.forgettable(bench.now)
    bench.run(20, *members[1:])
    assert set(bench.core.forgettable(bench.now)) == {"n0", "before-our-time"}
    bench.core.left("before-our-time", bench.now)
    bench.published.clear()
    bench.core.contact_lost()
    assert not bench.core.forgettable(bench.now), "it is us who can't hear"
    bench.core.contact_regained(bench.now)
    bench.run(310)
    assert bench.core.forgettable(bench.now) == ["n0"], "the assignment goes on naming its last holders"
    bench.core.left("n0", bench.now)
    bench.core.heartbeat(members[0].beat(), bench.now)
    assert not bench.core.forgettable(bench.now)
    bench.run(5, members[0])
    assert set(bench.actives().values()) == {"n0"}, "who was forgotten may come back"


# --- a changed topology ---


def test_a_changed_specification_is_published_once_and_moves_nothing() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    again = Bench(replace(scores(), value_serde="bytes"), restored=bench.assignment, seen_before=members)
    again.run(30, *members)
    [changed] = again.published
    assert changed.reason.startswith("topology declared")
    assert changed.stores["scores"].value_serde == "bytes"
    assert changed.tasks == bench.assignment.tasks


@pytest.mark.feature("standbys-many-set")
def test_more_standbys_are_made_without_moving_an_active_and_dropped_again() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    for count in (2, 0):
        settings = replace(SETTINGS, planner=planner(num_standby_replicas=count))
        again = Bench(settings=settings, restored=bench.assignment, seen_before=members)
        again.run(40, *members)
        assert again.is_quiet
        assert {len(holders.standbys) for holders in again.assignment.tasks.values()} == {count}
        assert all(
            epoch.tasks[task].active == active for epoch in again.published for task, active in bench.actives().items()
        )


def test_a_removed_store_takes_its_tasks_along_and_touches_no_other() -> None:
    members = fleet(3)
    bench = Bench(scores(4), scores(4, "other", "another-query")).settled(*members)
    without = Bench(scores(4), restored=bench.assignment, seen_before=members)
    without.run(30, *members)
    number = bench.assignment.stores["scores"].sub_topology
    kept = {task: holders for task, holders in bench.assignment.tasks.items() if task.sub_topology == number}
    assert without.published[0].tasks == kept


def test_a_session_is_over_at_its_timeout_and_later() -> None:
    [member] = fleet(1)
    for late_s in (0.0, 0.4):
        sessions = MemberSessions(SETTINGS)
        sessions.start(0.0, [])
        sessions.hear(member.beat(), 1.0, 0)
        assert sessions.expire(10.9) == []
        assert sessions.expire(11.0 + late_s) == ["n0 was not heard of for 10 s"]


# --- standing by ---


def test_a_core_that_stands_by_knows_who_lives_when_it_acts() -> None:
    """A node that died while nobody planned is replaced immediately, without another session timeout."""
    members = fleet(3)
    acting = Bench().settled(*members)
    standby = Bench(restored=acting.assignment)
    standby.core.inherit()
    standby.core.stand_by()
    standby.run(20, *members)
    standby.run(SETTINGS.session_timeout_s + 1, *members[1:])
    assert standby.published == []
    standby.core.act()
    standby.run(0.5, *members[1:])
    assert "n0" not in {node for holders in standby.assignment.tasks.values() for node in holders.replicas}
    assert [each.epoch for each in standby.published] == [acting.assignment.epoch + 1]
    assert standby.published[0].reason == "another controller took over"
    assert standby.assignment.stores == acting.assignment.stores


def test_a_takeover_of_a_quiet_fleet_publishes_nothing() -> None:
    members = fleet(3)
    acting = Bench().settled(*members)
    standby = Bench(restored=acting.assignment)
    standby.core.inherit()
    standby.core.stand_by()
    standby.run(5, *members)
    standby.core.act()
    standby.run(30, *members)
    assert standby.published == []


def test_copies_linger_after_hand_overs_that_were_missed() -> None:
    """A standby controller that was frozen reads only the last epoch, in which a copy is back that was away."""
    members = fleet(3)
    known = Bench(scores(1)).settled(*members).assignment
    one = known.tasks[TASK]
    third = next(member.name for member in members if member.name not in one.replicas)
    surplus = {TASK: replace(one, standbys=(*one.standbys, third))}
    before, _ = encode(known, replace(known, epoch=known.epoch + 1, tasks=surplus))
    after = replace(before, epoch=before.epoch + 2, written_at={**before.written_at, "task/0": before.epoch + 2})
    standby = Bench(scores(1), restored=before)
    standby.core.inherit()
    standby.core.stand_by()
    standby.run(SETTINGS.linger_s + 10, *members)
    standby.core.restore(after, standby.now)
    standby.core.act()
    standby.run(SETTINGS.linger_s - 1, *members)
    assert standby.assignment.tasks[TASK].standbys == (*one.standbys, third), "its copies stay for a linger"
    standby.run(SETTINGS.linger_s + 2, *members)
    assert len(standby.assignment.tasks[TASK].standbys) == 1


@pytest.mark.feature("standby-controller-without")
def test_stores_that_are_inherited_follow_the_assignment() -> None:
    acting = Bench(scores(4))
    acting.tick()
    standby = Bench(restored=acting.assignment)
    standby.core.inherit()
    standby.core.stand_by()
    changed = Bench(scores(4), scores(2, "few"), restored=acting.assignment)
    changed.tick()
    standby.core.restore(changed.assignment, standby.now)
    standby.core.act()
    standby.run(1, *fleet(1))
    assert standby.assignment.stores.keys() == {"scores", "few"}
    assert standby.assignment.sub_topologies == changed.assignment.sub_topologies


def test_a_topic_that_is_not_as_published_gets_everything_again() -> None:
    nodes = [FakeMember(f"n{number}") for number in range(2)]
    bench = Bench().settled(*nodes)
    before = bench.assignment
    again = bench.core.again("store/scores was not as published", before.epoch + 40)
    assert again.epoch == before.epoch + 41
    assert (again.stores, again.sub_topologies, again.tasks) == (before.stores, before.sub_topologies, before.tasks)
    assert "store/scores was not as published" in again.reason
    bench.core.restore(None, bench.now)
    assert bench.assignment == before, "a topic that has lost the assignment doesn't undo it"


def test_a_huge_number_of_a_heartbeat_silences_nobody() -> None:
    sessions = MemberSessions(SETTINGS)
    sessions.start(0.0, ())
    member = FakeMember("n0")
    first = member.beat()
    sessions.hear(first, 0.0)
    sessions.hear(replace(first, heartbeat=2**53), 1.0)
    sessions.hear(member.beat(), 1.0 + SETTINGS.session_timeout_s / 2)
    assert not sessions.expire(1.0 + SETTINGS.session_timeout_s)


def test_a_process_that_claimed_to_be_the_newest_and_fell_silent_hides_nobody() -> None:
    sessions = MemberSessions(SETTINGS)
    sessions.start(0.0, ())
    member = FakeMember("n0")
    first = member.beat()
    sessions.hear(replace(first, incarnation="ff", started_at_ms=first.started_at_ms + 9_000), 0.0)
    sessions.hear(member.beat(), 1.0)
    assert sessions.expire(SETTINGS.session_timeout_s)
    assert sessions.hear(member.beat(), SETTINGS.session_timeout_s + 1.0) == "n0 joined"


# --- nodes that are gone before their session is over ---


def address(member: FakeMember) -> NodeAddress:
    beat = member.beat()
    return NodeAddress(member.name, member.incarnation, beat.host, beat.port)


def refuse(bench: Bench, of: NodeAddress, *, was_open: bool = True, times: int = REFUSALS_MIN) -> None:
    """Let connections to a member be refused for just long enough."""
    if was_open:
        bench.core.sighted(Sighting(of, Seen.ACCEPTED, bench.now))
    for nth in range(times):
        bench.core.sighted(Sighting(of, Seen.REFUSED, bench.now + 0.01 + nth * SPAN_S / (REFUSALS_MIN - 1)))
    bench.now += 0.3
    bench.tick()


def test_others_become_active_for_a_node_that_has_ended_and_nothing_is_built() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    before = bench.assignment.tasks
    lost = [task for task, holders in before.items() if holders.active == "n0"]
    refuse(bench, address(members[0]))
    [epoch] = bench.published
    assert epoch.reason == "n0 refuses connections at localhost:9000"
    for task, holders in epoch.tasks.items():
        assert set(holders.replicas) == set(before[task].replicas), "copies stay where they are"
        assert holders.active != "n0"
    assert epoch.tasks[lost[0]].reason.endswith(
        f"n0 to {epoch.tasks[lost[0]].active}: n0 refuses connections at localhost:9000; "
        f"{epoch.tasks[lost[0]].active} is restored, lag 0"
    )
    assert set(bench.core.refusing) == {"n0"}
    bench.run(SETTINGS.session_timeout_s - 1, *members[1:])
    assert len(bench.published) == 1, "until its session is over nothing more happens"
    bench.run(2, *members[1:])
    assert "n0" not in {node for holders in bench.assignment.tasks.values() for node in holders.replicas}
    assert not bench.core.refusing


@pytest.mark.parametrize("why", ["never open", "too few", "heard since", "other process", "returns", "leaves", "off"])
def test_a_node_keeps_its_actives_where_refusals_prove_nothing(why: str) -> None:
    members = fleet(3)
    settings = replace(SETTINGS, early_promotions_max=0) if why == "off" else SETTINGS
    bench = Bench(settings=settings).settled(*members)
    of = address(members[0])
    if why == "other process":
        of = replace(of, incarnation="another")
    if why == "returns":
        bench.core.heartbeat(replace(members[0].beat(), returns=True), bench.now)
    if why == "leaves":
        bench.core.heartbeat(replace(members[0].beat(), state="PENDING_SHUTDOWN"), bench.now)
        bench.tick()
        bench.published.clear()
    if why == "heard since":
        refuse(bench, of, times=REFUSALS_MIN - 1)
        bench.core.heartbeat(members[0].beat(), bench.now)
        refuse(bench, of, was_open=False, times=1)
    else:
        refuse(bench, of, was_open=why != "never open", times=REFUSALS_MIN - (why == "too few"))
    assert not bench.core.refusing
    assert not bench.published
    if why in {"returns", "leaves", "off"}:
        assert of not in bench.core.watched()


def test_a_node_that_is_back_is_active_only_once_it_has_caught_up() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    shares = sorted(Counter(bench.actives().values()).values())
    refuse(bench, address(members[0]))
    members[0].restart("RUNNING")
    bench.core.heartbeat(members[0].beat(), bench.now)
    bench.run(3, *members, frozen=True)
    assert "n0" not in bench.actives().values()
    assert not bench.core.refusing
    bench.run(20, *members)
    assert sorted(Counter(bench.actives().values()).values()) == shares
    assert "n0" in bench.actives().values()


def test_a_node_that_lives_though_its_address_refuses_is_believed_once() -> None:
    members = fleet(3)
    bench = Bench().settled(*members)
    of = address(members[0])
    refuse(bench, of)
    bench.now += SETTINGS.heartbeat_interval_s
    for _ in range(3):
        bench.core.heartbeat(members[0].beat(), bench.now)
    bench.tick()
    assert set(bench.core.refusing) == {"n0"}, "these were on their way"
    bench.now += SETTINGS.heartbeat_interval_s
    bench.core.heartbeat(members[0].beat(), bench.now)
    bench.tick()
    assert not bench.core.refusing
    bench.run(20, *members)
    assert "n0" in bench.actives().values()
    assert of not in bench.core.watched()
    bench.published.clear()
    refuse(bench, of)
    assert not bench.published, "what refuses there is not this node"


def test_a_time_in_which_the_controller_knew_nothing_takes_refusals_back() -> None:
    members = fleet(3)
    for has_paused in (False, True):
        bench = Bench().settled(*members)
        of = address(members[0])
        refuse(bench, of, times=REFUSALS_MIN - 1)
        if has_paused:
            bench.now += 5 * SETTINGS.heartbeat_interval_s
        else:
            bench.core.contact_lost()
            bench.tick()
            bench.core.contact_regained(bench.now)
        bench.tick()
        refuse(bench, of, was_open=False, times=1)
        assert not bench.published


def test_so_many_early_losses_as_the_budget_has_and_no_more() -> None:
    members = fleet(5)
    bench = Bench(settings=replace(SETTINGS, early_promotions_max=1)).settled(*members)
    refuse(bench, address(members[0]))
    assert len(bench.published) == 1
    refuse(bench, address(members[1]))
    assert len(bench.published) == 1
    assert bench.core.withheld == {"n1"}
    bench.run(SETTINGS.session_timeout_s + 1, *members[2:])
    assert not {"n0", "n1"} & {node for holders in bench.assignment.tasks.values() for node in holders.replicas}


def test_only_active_nodes_are_watched_and_only_while_it_acts() -> None:
    members = fleet(3)
    bench = Bench(scores(1)).settled(*members)
    [active] = bench.actives().values()
    assert {each.name for each in bench.core.watched()} == {active}
    bench.core.stand_by()
    assert not bench.core.watched()
