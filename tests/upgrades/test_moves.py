"""Which moves an upgrade needs: each rule on its own, and the whole on a controller without processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from processor.ownership.machine.core import OwnershipCore
from processor.ownership.planning.model import NodeView, ReplicaView
from processor.ownership.planning.planner import plan
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.membership import NodeState
from statehouse.contract.topology import TaskId
from tests.robustness.history import EpochRecord, FaultRecord
from tests.support.members import FakeMember
from tests.support.settings import ownership
from tests.unit.processor.ownership.machine.test_core import Bench, fleet, scores
from tests.upgrades.moves import judged, most_moves, moves, restless

PARTITIONS, NODES = 6, 3
SETTINGS = ownership(heartbeat_interval_ms=500, session_timeout_ms=30_000)


def epoch(actives: str, at: float = 0.0, *, standbys: str = "") -> EpochRecord:
    """Nodes are letters: one for each partition's active, and one for its standby; the next in turn if not given."""
    beside = standbys or actives.translate(str.maketrans("abc", "bca"))
    return EpochRecord(1, at, tuple(actives), tuple(zip(actives, beside, strict=True)))


def needed(before: str, after: str, leaving: str = "", *, standbys: str = "") -> str:
    """Y for each active that had to move, n for one that had not, and a dot for one that stayed."""
    found = judged(epoch(before), epoch(after, standbys=standbys), leaving)
    return "".join({None: ".", True: "y", False: "n"}[found.get(part)] for part in range(len(before)))


@pytest.mark.parametrize(
    ("before", "after", "leaving", "expected"),
    [
        ("aabbcc", "aabbcc", "", "......"),
        ("aabbcc", "bcbbcc", "a", "yy...."),  # it leaves
        ("aabbcc", "abbbcc", "a", ".y...."),  # and may do so in steps
        ("aabbcc", "bbbccc", "a", "yy.y.."),  # both went to b, so that b gives one to c
        ("aabbcc", "bcccbb", "a", "yynnnn"),  # nobody is evened out by an exchange
        ("aabbcc", "bcbabb", "a", "yy.nnn"),  # who leaves gets nothing
        ("bbbccc", "abbccc", "", "y....."),  # a is back
        ("bbbccc", "abbacc", "", "y..y.."),
        ("bbbbcc", "aabbcc", "", "yy...."),
        ("bbbccc", "aaaacc", "", "nnnn.."),  # and takes too much
        ("aabbcc", "babbcc", "", "n....."),
        ("aabbcc", "bbaacc", "", "nnnn.."),
        ("aaaabb", "aabbbb", "", "..nn.."),  # one would do
        ("aaaabb", "aabbab", "", "..yyn."),  # two there, one back
    ],
)
def test_a_move_is_needed_if_its_node_leaves_or_if_it_evens_the_actives_out(
    before: str, after: str, leaving: str, expected: str
) -> None:
    assert needed(before, after, leaving) == expected


def test_a_node_that_holds_nothing_any_more_had_to_give_its_actives_up() -> None:
    assert needed("aabbcc", "bbbbcc", standbys="ccccbb") == "yy...."
    assert needed("aabbcc", "bbbbcc", standbys="ccccba") == "nn....", "it still has a standby"


def test_moves_before_the_first_update_do_not_count() -> None:
    epochs = [epoch("aabbcc", 1.0), epoch("bbaacc", 2.0), epoch("aabbcc", 4.0)]
    assert list(moves(epochs, [])) == []
    found = list(moves(epochs, [FaultRecord("update", "r1", 3.0, 5.0)]))
    assert [(move.partition, move.before, move.after, move.during) for move in found] == [
        (0, "b", "a", "r1"), (1, "b", "a", "r1"), (2, "a", "b", "r1"), (3, "a", "b", "r1"),
    ]  # fmt: skip
    assert not any(move.is_needed for move in found)


def test_a_node_leaves_until_it_has_no_active_and_then_comes_back() -> None:
    updates = [FaultRecord("update", "a", 1.0, 10.0), FaultRecord("update", "b", 20.0, 30.0)]
    epochs = [
        epoch("aabbcc", 0.5),
        epoch("babbcc", 2.0),
        epoch("bcbbcc", 3.0),
        epoch("bcabcc", 8.0),
        epoch("bcaacc", 9.0),  # too much for it
        epoch("bcabcc", 15.0),  # evened out when all was thought to be over
        epoch("bcabaa", 16.0),
    ]
    found = list(moves(epochs, updates))
    assert [(move.update, move.during, move.is_needed) for move in found] == [
        (0, "a", True), (0, "a", True), (0, "a", True), (0, "a", False), (0, "", False), (0, "", False), (0, "", False),
    ]  # fmt: skip
    assert restless(found, 7) == {}
    assert restless(found, 6) == {0: 7}


@pytest.mark.parametrize(("partitions", "nodes", "most"), [(6, 3, 6), (7, 3, 9), (2, 3, 3)])
def test_the_update_of_a_node_moves_its_share_three_times_at_most(partitions: int, nodes: int, most: int) -> None:
    assert most_moves(partitions, nodes) == most


def recorded(bench: Bench) -> EpochRecord:
    held = [bench.assignment.tasks[TaskId(0, number)] for number in range(PARTITIONS)]
    actives = tuple(str(task.active) for task in held)
    return EpochRecord(bench.assignment.epoch, bench.now, actives, tuple(task.replicas for task in held))


class Played:
    """What the tests with processes do, without any: a controller, its nodes and its clock."""

    def __init__(self) -> None:
        self.members = fleet(NODES)
        self.bench = Bench(scores(PARTITIONS), settings=SETTINGS).settled(*self.members)
        self.updates: list[FaultRecord] = []
        self.epochs = [recorded(self.bench)]

    def run(self, seconds: float, *members: FakeMember) -> None:
        for _ in range(round(seconds / 0.5)):
            self.bench.run(0.5, *members)
            if self.bench.assignment.epoch != self.epochs[-1].epoch:
                self.epochs.append(recorded(self.bench))

    @contextmanager
    def update(self, target: str) -> Iterator[None]:
        began_at = self.bench.now
        yield
        self.run(20, *self.members)
        self.updates.append(FaultRecord("update", target, began_at, self.bench.now))

    def update_node(self, member: FakeMember) -> None:
        """It hands over, leaves, and comes back as a version that can't use its stores."""
        others = [other for other in self.members if other is not member]
        with self.update(member.name):
            member.state = NodeState.PENDING_SHUTDOWN
            self.run(2, *self.members)
            assert member.name not in recorded(self.bench).actives
            self.bench.core.left(member.name, self.bench.now)
            self.run(4, *others)
            member.restart(NodeState.RUNNING)
            member.replicas.clear()

    def update_controller(self) -> None:
        bench = self.bench
        with self.update("processor"):
            bench.now += 3.0
            known, bench.core = bench.core.assignment, OwnershipCore(SETTINGS, "another")
            bench.core.restore(known)
            bench.core.declare((scores(PARTITIONS),))
            for member in self.members:
                bench.core.heartbeat(member.beat(), bench.now)
            bench.core.start(bench.now)


@pytest.mark.feature("rolling-upgrade-last")
def test_the_plan_moves_nothing_needlessly_while_each_process_is_replaced_and_back() -> None:
    played = Played()
    for _ in range(2):
        for member in played.members:
            played.update_node(member)
        played.update_controller()
    found = list(moves(played.epochs, played.updates))
    assert [move for move in found if not move.is_needed] == []
    assert restless(found, most_moves(PARTITIONS, NODES)) == {}
    targets = {played.updates[move.update].target for move in found}
    assert targets == {member.name for member in played.members}, "a new controller moves nothing"
    share = PARTITIONS // NODES
    for number, update in enumerate(played.updates):
        if update.target in targets:
            own = [move for move in found if move.update == number]
            assert sum(move.before == update.target for move in own) == share
            assert sum(move.after == update.target for move in own) == share


def test_a_new_fleet_moves_actives_before_the_first_update() -> None:
    """Its last node comes late, and gets its share."""
    members = fleet(NODES)
    bench = Bench(scores(PARTITIONS), settings=SETTINGS)
    bench.run(5, *members[:-1])
    began = recorded(bench)
    bench.run(20, *members)
    ended = recorded(bench)
    assert sum(judged(began, ended).values()) == PARTITIONS // NODES
    assert list(moves([began, ended], [FaultRecord("update", "n0", bench.now + 1, bench.now + 2)])) == []


def test_a_node_whose_standbys_are_all_on_one_other_makes_that_one_give_an_active_to_the_third() -> None:
    places = ["ab", "ab", "bc", "ba", "ca", "cb"]
    current = {TaskId(0, part): TaskAssignment(held[0], (held[1],)) for part, held in enumerate(places)}
    views = {
        name: NodeView(
            replicas={task: ReplicaView(restored=True, lag=0) for task in current if name in places[task.partition]},
            leaving=name == "a",
        )
        for name in "abc"
    }
    made = plan(current, views, current, SETTINGS.planner).tasks
    actives = "".join(str(holders.active) for holders in made.values())
    assert actives == "bbcbcc"
    after = EpochRecord(2, 1.0, tuple(actives), tuple(holders.replicas for holders in made.values()))
    assert judged(epoch("aabbcc"), after, "a") == {0: True, 1: True, 2: True}


def test_the_definition_is_not_of_this_plan_only() -> None:
    """The same play with a plan that exchanges two actives afterwards is found out."""
    played = Played()
    played.update_node(played.members[0])
    last = played.epochs[-1]
    one, other = 0, next(part for part, active in enumerate(last.actives) if active != last.actives[0])
    actives = list(last.actives)
    actives[one], actives[other] = actives[other], actives[one]
    exchanged = replace(last, epoch=last.epoch + 1, at=last.at + 1, actives=tuple(actives))
    found = [move for move in moves([*played.epochs, exchanged], played.updates) if not move.is_needed]
    assert [move.partition for move in found] == [one, other]
