"""The simulation itself: seeds run without a violation, and defects made on purpose are caught."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import grpc
import pytest

import processor.ownership.planning.planner
import query_service.reads.admission
import query_service.reads.first_batch
import query_service.stores.kept_moments
import router.calls.attempts
import statehouse.security.denial
import statehouse.security.rules
from processor.ownership.machine.refusals import REFUSALS_MIN, SPAN_S, Refusals, Seen
from processor.ownership.machine.sessions import MemberSessions
from processor.ownership.machine.takeover import Takeover
from processor.ownership.planning.model import LiveNodes, Readiness, Slot
from query_service.reads.first_batch import FirstBatches
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.states.faults import Fault
from query_service.states.ownership import claimed_role
from query_service.states.task_events import Action, Close, NodeTask, RetryAfter
from query_service.states.task_machine import TaskMachine
from query_service.stores.engine import Writes
from query_service.stores.memory_engine import MemoryEngine
from router.calls.attempts import CallOutcome
from router.calls.health import NodeHealth
from router.fleet.table import RoutedNode
from statehouse.contract.first_batch import obstacle
from statehouse.contract.membership import TaskState
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import AnyTaskId, Role
from statehouse.errors import LookupFailure, Reason
from statehouse.link.handed import HandedLookup
from statehouse.security.identities import ANYBODY, KnownCaller, KnownCallers
from statehouse.security.rights import Right
from statehouse.security.rules import EVERYTHING, Grant, may
from statehouse.security.shown import Shown
from tests.simulation.__main__ import outcomes
from tests.simulation.controller import STEPS
from tests.simulation.faults import KINDS
from tests.simulation.proxy import SimulatedProxy
from tests.simulation.run import Outcome, run_seed

SEEDS = 12
LONG_SEEDS = 5_000
CAUGHT_WITHIN = 25
"""Seeds within which every variant that is broken on purpose must be caught."""
CAUGHT_BEFORE = {
    "answer_before_the_first_batch": 4,
    "believe_a_router": 1,
    "close_a_store_while_it_opens": 4,
    "forget_the_epoch_of_the_request": 8,
    "learn_nothing_after_a_silence": 1,
    "take_a_report_for_what_it_reports": 24,
    "wait_for_late_answers_on_the_express_way": 5,
}
"""The seeds that caught what seed 0 doesn't: they are tried first, as runs without a violation take longest."""
SILENCE_S = 2.0
"""How long a node that is well is never without an end."""


def check_clean(found: list[Outcome]) -> Counter[str]:
    """No rule was broken, and something happened; returns how much."""
    broken = [f"python -m tests.simulation --seed {each.seed} --trace: {each.violation}" for each in found]
    broken = [line for line, each in zip(broken, found, strict=True) if each.violation]
    assert not broken, "\n".join(broken)
    counts: Counter[str] = Counter()
    for each in found:
        counts.update(each.counts)
    return counts


@pytest.mark.feature("whole-fleet-simulation")
@pytest.mark.feature("node-out-touch")
@pytest.mark.feature("clocks-jump-staleness")
@pytest.mark.feature("two-standby-controllers")
@pytest.mark.timeout(600)
def test_a_few_seeds_are_clean() -> None:
    counts = check_clean([run_seed(seed) for seed in range(SEEDS)])
    for what in ("actives moved", "restores", "found", "not found", "answers as standby", "lookups failed"):
        assert counts[what] > 5, what
    for what in ("allowed: reader", "allowed: router", "allowed: guest", "denied: UNAUTHENTICATED"):
        assert counts[what] > 20, what
    assert counts["taken for gone early"] > 2
    for what in ("answered within the processor's age", "refused by the processor's age"):
        assert counts[what] > 5, what
    for what in ("answered", "agreed", "found again", "MOMENT_GONE", "MOMENT_NOT_REACHED"):
        assert counts[f"moments: {what}"] > 5, what
    for what in ("answered", "handed over, late", "handed over, not answered", "UNDECIDED"):
        assert counts[f"express: {what}"] > 5, what
    assert sum(counts[f"fault: {kind}"] > 0 for kind in KINDS) > len(KINDS) * 0.7


@pytest.mark.feature("two-standby-controllers")
@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_thousands_of_seeds_are_clean() -> None:
    counts = check_clean(list(outcomes(range(LONG_SEEDS), jobs=2)))
    for kind in KINDS:
        assert counts[f"fault: {kind}"] > LONG_SEEDS / 20, kind
    for step in STEPS:
        for what in ("crash", "freeze"):
            assert counts[f"controller {what} at {step}"] > LONG_SEEDS / 200, (what, step)
    for what in (
        "actives moved",
        "taken for gone early",
        "answers as standby",
        "controllers fenced",
        "taken over by a standby controller",
        "drained",
        "publications uncertain",
        "superseded",
        "members forgotten",
        "sent late",
        "records compacted",
        "refused: PARTITION_NOT_OWNED",
        "refused: ACTIVE_UNCONFIRMED",
        "steps that failed",
        "folders removed",
        "allowed: guest",
        "denied: PERMISSION_DENIED",
        "denied: UNAUTHENTICATED",
        "express: answered",
        "express: answered late",
        "express: handed over, late",
        "express: handed over, not answered",
        "express: no snapshot holds",
        "express: UNDECIDED",
        "express: UNKNOWN_STORE",
    ):
        assert counts[what] > LONG_SEEDS / 100, what


@pytest.mark.feature("whole-fleet-simulation")
def test_a_seed_decides_everything() -> None:
    """Not even the order of sets, which changes with the hash seed of each process, has a say."""
    program = "from tests.simulation.run import run_seed; print(*run_seed(4, is_traced=True).trace, sep='\\n')"
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        printed = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, timeout=120
        ).stdout
        assert printed.count(b"\n") > 100
        digests.add(hashlib.sha256(printed).hexdigest())
    assert len(digests) == 1


def test_a_violation_is_printed_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.simulation import __main__ as command  # noqa: PLC0415 - the command line's own module

    with break_before_make(), patch.object(sys, "argv", ["simulation", "--seed", str(caught(break_before_make).seed)]):
        assert command.main() == 1
    printed = capsys.readouterr().out
    assert "VIOLATION" in printed
    assert "epochs published" in printed


def drop_the_caught_up_rule() -> AbstractContextManager[object]:
    """A node that holds anything of a task is taken for caught up."""

    def readiness(_fleet: LiveNodes, slot: Slot, node: str) -> Readiness:
        return Readiness.CAUGHT_UP if node in slot.views else Readiness.NOTHING

    return patch.object(LiveNodes, "readiness", readiness)


def forget_the_epoch_of_the_request() -> AbstractContextManager[object]:
    """A node claims ACTIVE at its own epoch, however new the request's is."""

    def claims(role: Role, *, confirmed: bool, epoch: int, requested_epoch: int) -> Role:
        return claimed_role(role, confirmed=confirmed, epoch=epoch, requested_epoch=min(epoch, requested_epoch))

    return patch.object(query_service.reads.admission, "claimed_role", claims)


def count_lag_to_an_old_end() -> AbstractContextManager[object]:
    """The end that was named last is taken for the end, however long ago that was."""

    def lag(replica: StoreReplica, _now: float) -> int | None:
        end = replica.end_offset
        return None if end is None else end - replica.position

    return patch.object(StoreReplica, "lag", lag)


def stop_the_clock_between_reports() -> AbstractContextManager[object]:
    """The processor's age is what it was when its report came, however long ago that was."""
    ages: dict[ProcessorReport, int] = {}

    def age_ms(report: ProcessorReport, now_s: float) -> int:
        return ages.setdefault(report, max(0, int((now_s - report.at_s) * 1000)))

    return patch.object(ProcessorReport, "age_ms", age_ms)


def learn_nothing_after_a_silence() -> AbstractContextManager[object]:
    """A replica that wasn't told an end for a while takes none any more, and gets staler and staler."""
    note_end = StoreReplica.note_end
    told_at: dict[StoreReplica, float] = {}

    def note(replica: StoreReplica, offset: int, asked_at: float, wall_ms: int) -> None:
        if asked_at - told_at.setdefault(replica, asked_at) < SILENCE_S:
            told_at[replica] = asked_at
            note_end(replica, offset, asked_at, wall_ms)

    return patch.object(StoreReplica, "note_end", note)


def break_before_make() -> AbstractContextManager[object]:
    """Copies that are relieved are dropped in the epoch that relieves them."""
    drop = processor.ownership.planning.planner._drop_surplus

    def drop_at_once(slot: Slot, fleet: LiveNodes, *, fresh: bool) -> bool:
        return drop(slot, fleet, fresh=False)

    return patch.object(processor.ownership.planning.planner, "_drop_surplus", drop_at_once)


def forget_a_retry() -> AbstractContextManager[object]:
    """A task that has failed is never tried again."""
    fail = TaskMachine._fail

    def fail_for_good(machine: TaskMachine, node_task: NodeTask, fault: Fault, error: str) -> list[Action]:
        return [action for action in fail(machine, node_task, fault, error) if not isinstance(action, RetryAfter)]

    return patch.object(TaskMachine, "_fail", fail_for_good)


def close_a_store_while_it_opens() -> AbstractContextManager[object]:
    """A task that is no longer wanted is closed immediately, whatever is under way."""
    follows = TaskMachine._next

    def close_at_once(machine: TaskMachine, task: AnyTaskId) -> list[Action]:
        node_task = machine.tasks.get(task)
        if node_task is None or node_task.state is not TaskState.CREATED or task in machine._wanted:
            return follows(machine, task)
        node_task.state = TaskState.SUSPENDED
        return [machine._begin(task, Close(node_task, has_failed=False))]

    return patch.object(TaskMachine, "_next", close_at_once)


def wait_by_ones_own_clock() -> AbstractContextManager[object]:
    """A standby controller takes for silence whatever it has not heard for a session timeout."""

    def is_due(takeover: Takeover, now: float) -> bool:
        acting = takeover.acting
        return acting is not None and now - takeover._quiet_since >= acting.settings.session_timeout_s

    return patch.object(Takeover, "is_due", is_due)


def believe_whoever_forwards() -> AbstractContextManager[object]:
    """A request that says that a router has sent it on is taken from everybody."""

    def believes(grants: Sequence[Grant], right: Right, store: str | None = None) -> bool:
        return right is Right.FORWARD or may(grants, right, store)

    return patch.object(statehouse.security.denial, "may", believes)


def take_a_right_for_one_store_for_all() -> AbstractContextManager[object]:
    """A caller that may read a store may read each."""

    def may_anywhere(grants: Sequence[Grant], right: Right, _store: str | None = None) -> bool:
        return may(grants, right)

    return patch.object(statehouse.security.denial, "may", may_anywhere)


def know_whoever_shows_a_token() -> AbstractContextManager[object]:
    """A token that no rule names is as good as another."""
    identify = KnownCallers.identify

    def identify_all(known: KnownCallers, shown: Shown, now: float) -> KnownCaller:
        try:
            return identify(known, shown, now)
        except LookupFailure:
            return KnownCaller(ANYBODY, EVERYTHING, math.inf)

    return patch.object(KnownCallers, "identify", identify_all)


def read_no_patterns() -> AbstractContextManager[object]:
    """A pattern describes nothing but itself."""
    return patch.object(statehouse.security.rules, "matches", lambda pattern, name: pattern == name)


def take_a_handed_refusal_for_an_answer() -> AbstractContextManager[object]:
    """What a node has told the proxy goes to the caller, whatever it is."""

    async def outcome_of(handed: HandedLookup) -> CallOutcome | None:
        try:
            return await handed.came
        except grpc.RpcError:
            return b""

    return patch.object(router.calls.attempts, "_outcome_of", outcome_of)


def wait_for_late_answers_on_the_express_way() -> AbstractContextManager[object]:
    """A proxy hands over what a node refuses, and waits for what is late."""
    return patch.object(SimulatedProxy, "_late_after_s", lambda *_: None)


def answer_before_the_first_batch() -> AbstractContextManager[object]:
    """A changelog that has been read to its end is proof enough, whatever has been committed."""
    return patch.object(FirstBatches, "require", lambda *_: None)


def take_a_report_for_what_it_reports() -> AbstractContextManager[object]:
    """A node that has heard of a first batch is taken to have it."""

    def proves(store: str, partition: int, _position: int, *rest: Any, **facts: Any) -> tuple[Reason, str] | None:
        return obstacle(store, partition, 2**62, *rest, **facts)

    return patch.object(query_service.reads.first_batch, "obstacle", proves)


def keep_a_moment_one_record_late() -> AbstractContextManager[object]:
    """The first record of the next batch is in what is kept of a batch."""
    keep, write = MemoryEngine.keep, MemoryEngine.write
    ended: set[MemoryEngine] = set()

    def note(engine: MemoryEngine, last: int, lo: int, hi: int) -> None:
        keep(engine, last, lo, hi)
        ended.add(engine)

    def write_late(engine: MemoryEngine, writes: Writes, checkpoint: Checkpoint) -> None:
        kept = engine._moments._kept[-1] if engine in ended and engine._moments._kept else None
        ended.discard(engine)
        if kept is not None and kept.last != checkpoint.batch:
            write(engine, {family: [*entries][:1] for family, entries in writes.items()}, checkpoint)
            if kept in engine._moments._kept:
                kept.entries.release()
                kept.entries = engine._begin_moment()
        write(engine, writes, checkpoint)

    return patch.multiple(MemoryEngine, keep=note, write=write_late)


def thin_by_what_a_replica_has() -> AbstractContextManager[object]:
    """A replica drops every second one of those that it happens to have."""
    return patch.object(query_service.stores.kept_moments, "_is_wanted", lambda _kept, _newest, newer: newer % 2 == 0)


def believe_a_router() -> AbstractContextManager[object]:
    """A node that one router can't reach is taken for gone."""
    failed, expire = NodeHealth.failed, MemberSessions.expire
    out_of_reach: set[str] = set()

    def note(health: NodeHealth, node: RoutedNode, *rest: Any) -> None:
        failed(health, node, *rest)
        if node.instance_id in health.suspects:
            out_of_reach.add(node.incarnation)

    def believe(sessions: MemberSessions, now: float) -> list[str]:
        for session in sessions._sessions.values():
            if session.member.incarnation in out_of_reach:
                session.refusals.see(Seen.ACCEPTED, now)
                for nth in range(REFUSALS_MIN):
                    session.refusals.see(Seen.REFUSED, now + nth * SPAN_S)
        return expire(sessions, now)

    stack = ExitStack()
    stack.enter_context(patch.object(NodeHealth, "failed", note))
    stack.enter_context(patch.object(MemberSessions, "expire", believe))
    return stack


def take_whatever_fails_for_a_refusal() -> AbstractContextManager[object]:
    """A connection that isn't accepted is refused, however many there were before."""

    def see(refusals: Refusals, seen: Seen, at: float) -> None:
        refusals._count = 0 if seen is Seen.ACCEPTED else REFUSALS_MIN
        refusals._first_at, refusals._last_at = at - SPAN_S, at

    return patch.object(Refusals, "see", see)


def caught(variant: Callable[[], AbstractContextManager[object]]) -> Outcome:
    """Return a run in which a variant breaks a rule."""
    first = CAUGHT_BEFORE.get(variant.__name__, 0)
    with variant():
        for seed in sorted(range(CAUGHT_WITHIN), key=lambda seed: seed != first):
            if (outcome := run_seed(seed)).violation:
                return outcome
    raise AssertionError(f"{variant.__name__} was not caught within {CAUGHT_WITHIN} seeds")


@pytest.mark.feature("whole-fleet-simulation")
@pytest.mark.feature("two-standby-controllers")
@pytest.mark.parametrize(
    ("variant", "rules"),
    [
        (
            drop_the_caught_up_rule,
            (
                "the active is caught up if an assigned replica is",
                "the last caught-up replica stays",
                "make before break: the new active held the task before",
            ),
        ),
        (forget_the_epoch_of_the_request, ("ACTIVE is not claimed at an epoch older than the request's",)),
        pytest.param(count_lag_to_an_old_end, ("lag is true of a session timeout ago",), marks=pytest.mark.long),
        (stop_the_clock_between_reports, ("the processor is not told to be younger than it is",)),
        pytest.param(
            wait_by_ones_own_clock,
            ("a controller that is heard is left alone", "who was out of touch takes nothing over"),
            marks=pytest.mark.long,
        ),
        (believe_whoever_forwards, ("forwarding is believed from routers only",)),
        (take_a_right_for_one_store_for_all, ("who may not call is refused",)),
        (know_whoever_shows_a_token, ("who may not call is refused", "forwarding is believed from routers only")),
        (read_no_patterns, ("who may call is not refused",)),
        (take_a_handed_refusal_for_an_answer, ("what a caller gets is a node's answer",)),
        (wait_for_late_answers_on_the_express_way, ("a lookup that a replica could answer does not fail",)),
        (answer_before_the_first_batch, ("nothing is absent before the first batch",)),
        pytest.param(
            take_a_report_for_what_it_reports,
            ("nothing is absent before the first batch",),
            marks=pytest.mark.long,
        ),
        (keep_a_moment_one_record_late, ("a moment is its batch",)),
        (thin_by_what_a_replica_has, ("a batch that is kept is kept by all",)),
        (believe_a_router, ("who is taken for gone is gone",)),
        pytest.param(take_whatever_fails_for_a_refusal, ("who is taken for gone is gone",), marks=pytest.mark.long),
        (forget_a_retry, ("every plan converges when faults stop",)),
        (close_a_store_while_it_opens, ("no step of a task disturbs another",)),
        (
            learn_nothing_after_a_silence,
            ("a lookup that a replica could answer does not fail", "a batch that is kept is kept by all"),
        ),
        (
            break_before_make,
            ("a relieved replica lingers", "make before break: the old active stays as standby"),
        ),
    ],
)
def test_what_is_broken_on_purpose_is_caught(
    variant: Callable[[], AbstractContextManager[object]], rules: tuple[str, ...]
) -> None:
    violation = caught(variant).violation
    assert violation.startswith(rules), violation
