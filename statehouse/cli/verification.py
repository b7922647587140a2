"""Compares the copies of a store's partitions: its replicas with each other, and with what the changelog says.

All copies of a partition are summed at the same moment: all entries, or those windows and sessions that every copy has.
Where sums differ, the entries of these buckets are listed and compared. A copy that can't be summed, because its node
restores, moves it or is away, is no difference: all copies of the partition are summed again, until a bound in time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Final

from statehouse.cli.sum_calls import Copy, SumCalls, SummedCopy, SumOrder
from statehouse.client.answers import Fleet, Host, Partition
from statehouse.contract.membership import TaskState
from statehouse.contract.moments import MomentToken
from statehouse.contract.store_sums import EVERY_ENTRY, LISTED_MAX, LOG, Difference, Wrong, differences, differing
from statehouse.errors import LookupFailure, Reason

_AGAIN_S: Final = 0.5
PASSING: Final = frozenset(
    {
        Reason.ATTEMPT_TIMED_OUT,
        Reason.MOMENT_GONE,
        Reason.MOMENT_NOT_REACHED,
        Reason.NODE_SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.PARTITION_NOT_OWNED,
        Reason.PARTITION_RESTORING,
        Reason.ROUTING_NOT_READY,
        Reason.TASK_FAILED,
        Reason.TOPIC_CHANGED,
        Reason.UNREACHABLE,
    }
)
"""Why a copy may not be summed now, and be summed a little later."""


@dataclass(frozen=True, slots=True)
class CheckedCopy:
    """A copy that was summed: its name, and how many entries it had, of how many bytes."""

    name: str
    entries: int
    bytes: int
    differs: bool = False


@dataclass(frozen=True, slots=True)
class CheckedPartition:
    """What came of a partition.

    Attributes:
        moment: the moment of the comparison; None: there was none.
        position: where it ends in the changelog.
        copies: what was compared.
        buckets: how many buckets differed; 0: all is equal.
        differences: the entries that differ, of the first of these buckets. None though buckets differ: they were
            overwritten before they could be listed.
        is_cut: not all buckets that differ were listed.
        obstacle: why it could not be checked; None: it was.

    """

    store: str
    partition: int
    moment: MomentToken | None = None
    position: int = 0
    copies: tuple[CheckedCopy, ...] = ()
    buckets: int = 0
    differences: tuple[Difference, ...] = ()
    is_cut: bool = False
    obstacle: LookupFailure | None = None

    @property
    def wrong_nodes(self) -> list[str]:
        """The nodes whose replicas are known to be wrong."""
        return sorted({each.copy for each in self.differences if each.wrong is not Wrong.UNCLEAR and each.copy != LOG})


@dataclass(frozen=True, slots=True)
class Verification:
    """How partitions are checked.

    Attributes:
        buckets: into how many buckets keys are divided.
        bytes_per_second: what each node reads at most; 0: as much as it can.
        with_log: whether the changelog is among the copies.
        patience_s: for how long a partition that can't be checked is tried again.

    """

    buckets: int
    bytes_per_second: int
    with_log: bool = True
    patience_s: float = 60.0


class Verifier:
    """Checks partitions of a store.

    `places()` returns what the router knows of its partitions and of the fleet.
    """

    def __init__(
        self,
        how: Verification,
        calls: SumCalls,
        places: Callable[[], tuple[Sequence[Partition], Fleet]],
        stopped: threading.Event | None = None,
    ) -> None:
        """`stopped`: once it is set, nothing is tried again."""
        self._how, self._calls, self._places = how, calls, places
        self._stopped = stopped or threading.Event()

    def check(self, store: str, partition: int) -> CheckedPartition:
        """Compare the copies of a partition.

        Raises:
            LookupFailure: it can't be checked now nor later.

        """
        until = time.monotonic() + self._how.patience_s
        while True:
            try:
                return self._compared(store, partition, self._copies(partition))
            except LookupFailure as failure:
                if failure.reason not in PASSING:
                    raise
                if time.monotonic() >= until or self._stopped.wait(_AGAIN_S):
                    return CheckedPartition(store, partition, obstacle=failure)

    def restore(self, store: str, partition: int, node: str) -> CheckedPartition:
        """Have a node restore its replica from the changelog, wait until it has, and compare the copies again.

        Raises:
            LookupFailure: the node refuses, is away, or does not get ready in time; or as `check`.

        """
        host = next(each for each in self._running(partition) if each.instance_id == node)
        self._calls.restore(host, store, partition)
        until = time.monotonic() + max(self._how.patience_s, _RESTORES_WITHIN_S)
        while self._is_restoring(host, store, partition):
            if time.monotonic() >= until or self._stopped.wait(_AGAIN_S):
                raise LookupFailure(Reason.PARTITION_RESTORING, f"{host} has not restored its replica in time")
        return self.check(store, partition)

    def _is_restoring(self, host: Host, store: str, partition: int) -> bool:
        """Whether a node still has to restore its replica, or the router doesn't know yet that it has."""
        if self._calls.state_of(host, store, partition) == TaskState.RUNNING:
            return host not in self._running(partition)
        found = self._places()[0][partition]  # it is closed and opened again, unless it goes elsewhere meanwhile
        return host.instance_id in {each.instance_id for each in (found.active, *found.standbys) if each is not None}

    def _copies(self, partition: int) -> list[Copy]:
        """Return what is to be compared; the first one chooses the moment.

        Raises:
            LookupFailure: NO_REPLICA_AVAILABLE and the like: there are not two copies now.

        """
        hosts = self._running(partition)
        copies = [Copy(each) for each in hosts]
        if self._how.with_log and hosts:
            copies.insert(0, Copy(hosts[-1], of_log=True))  # the active, which comes first, has more to do
        if len(copies) < 2:
            message = f"partition {partition} has {len(hosts)} running replicas: there is nothing to compare"
            raise LookupFailure(Reason.PARTITION_RESTORING, message)
        return copies

    def _running(self, partition: int) -> list[Host]:
        partitions, fleet = self._places()
        hosts = {node.host.instance_id: node.host for node in fleet.nodes}
        return [
            hosts[each.instance_id]
            for each in partitions[partition].replicas
            if each.state == TaskState.RUNNING and each.instance_id in hosts
        ]

    def _alike(self, order: SumOrder, copies: Sequence[Copy], moment: MomentToken | None) -> list[SummedCopy]:
        """Have all copies summed at one moment, so that the same entries count: none that one has expired.

        Mostly all have seen the same stream time. If not, they are summed once more.
        """
        summed = self._calls.summed(order, copies, moment)
        known = [each.bounds for each in summed if each.bounds is not None]
        bounds = reduce(or_, known, EVERY_ENTRY)
        if any(each != bounds for each in known):
            summed = self._calls.summed(replace(order, bounds=bounds), copies, summed[0].moment)
        return summed

    def _compared(self, store: str, partition: int, copies: Sequence[Copy]) -> CheckedPartition:
        order = SumOrder(store, partition, self._how.buckets, self._how.bytes_per_second)
        summed = self._alike(order, copies, None)
        found = _of_sums(order, summed)
        if not found.buckets:
            return found
        buckets = tuple(differing(each.sums for each in summed)[:LISTED_MAX])
        listing = replace(order, listed=buckets)
        try:
            listed = self._alike(replace(listing, bounds=summed[0].bounds), copies, summed[0].moment)
        except LookupFailure as failure:
            if failure.reason is not Reason.MOMENT_GONE:
                raise
            listed = self._alike(listing, copies, None)
        wrong = differences({each.copy.name: each.listed for each in listed})
        names = {each.copy for each in wrong}
        return replace(
            found,
            moment=listed[0].moment,
            position=listed[0].position,
            copies=tuple(replace(each, differs=each.name in names) for each in found.copies),
            differences=tuple(wrong),
            is_cut=len(buckets) < found.buckets,
        )


_RESTORES_WITHIN_S: Final = 600.0


def _of_sums(order: SumOrder, summed: Sequence[SummedCopy]) -> CheckedPartition:
    return CheckedPartition(
        order.store,
        order.partition,
        summed[0].moment,
        summed[0].position,
        tuple(CheckedCopy(each.copy.name, each.entries, each.size) for each in summed),
        len(differing(each.sums for each in summed)),
    )
