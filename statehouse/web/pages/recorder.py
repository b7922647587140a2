"""What this process has heard of the fleet: the newest word of routers and nodes, and a bounded past. Pure.

`poller.py` feeds it; pages read it. It lives on one event loop, and is never changed while a page is made.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from statehouse.client.answers import ChangelogSettings, Fleet, Store, Task
from statehouse.client.node_readings import NodeReading, ReplicaPlace
from statehouse.client.restore_rates import RestoreRates, RunningRestore
from statehouse.web.pages.contacts import QUIET_S, Contact, NodeContact, StorePlace, answered_between
from statehouse.web.pages.epochs import EpochLog
from statehouse.web.pages.partitions import Condition, partition_count, partitions_of
from statehouse.web.pages.refusals import Refusals
from statehouse.web.pages.routing_counts import RoutingCounts
from statehouse.web.pages.samples import COLUMN_S, UNKNOWN, SampleColumn, Samples, StoreColumn


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by a clock that only grows, in seconds, and by the wall clock, in epoch milliseconds."""

    at_s: float
    epoch_ms: int

    def ms_since(self, at_s: float) -> int:
        """Return the milliseconds from an earlier time to this one, by the clock that only grows."""
        return max(0, int((self.at_s - at_s) * 1_000))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why routers can't be asked, and since when."""

    message: str
    since: Moment


_NEVER: Final = Moment(float("-inf"), 0)


class Recorder:
    """The fleet as this process knows it."""

    def __init__(self) -> None:
        """Start without knowing anything."""
        self.fleet: Fleet | None = None
        self.fleet_at = _NEVER
        self.trouble: Trouble | None = None
        self.changelogs: tuple[ChangelogSettings, ...] | None = None
        self.changelogs_at = _NEVER
        self.epochs = EpochLog()
        self.samples = Samples()
        self.routing = RoutingCounts()
        self.refusals = Refusals()
        self.tasks: Mapping[str, Task] = {}
        """The tasks of the fleet, by id."""
        self.readings: dict[str, NodeReading] = {}
        """Each node's last answer, by instance id."""
        self.contacts: dict[str, NodeContact] = {}
        """How the last question to each node went, by instance id."""
        self._counted: dict[StorePlace, int] = {}
        self._rates: dict[str, RestoreRates] = {}
        self._restores: dict[str, dict[ReplicaPlace, RunningRestore]] = {}
        self._last_column: Moment | None = None
        self._last_actives: dict[str, str | None] = {}

    def store(self, name: str) -> Store | None:
        """Return a store of the fleet, None if there is none of this name."""
        stores = () if self.fleet is None else self.fleet.stores
        return next((store for store in stores if store.name == name), None)

    def heard(self) -> Iterator[NodeReading]:
        """Yield the last answers of the nodes that answer."""
        for name, reading in self.readings.items():
            if self.contacts[name].contact is Contact.ANSWERS:
                yield reading

    def restore(self, instance_id: str, place: ReplicaPlace) -> RunningRestore | None:
        """Return how far the restore of a node's replica is; None if it doesn't restore."""
        return self._restores.get(instance_id, {}).get(place)

    def take_fleet(self, fleet: Fleet, now: Moment) -> None:
        """Take the fleet as a router tells of it."""
        self.trouble = None
        if not self.epochs.take(fleet, now.epoch_ms):
            return
        if not fleet.queries and self.fleet is not None and fleet.controller is None:
            # WatchFleet leaves these out, and they don't change with an epoch.
            known = self.fleet
            fleet = replace(
                fleet,
                queries=known.queries if known.version == fleet.version else (),
                controller=known.controller if known.version == fleet.version else None,
                served_by=known.served_by,
                versions=known.versions,
            )
        self.fleet, self.fleet_at, self.tasks = fleet, now, {task.task: task for task in fleet.tasks}
        self.refusals.take(fleet.queries, now.at_s)
        here = {node.host.instance_id for node in fleet.nodes}
        for gone in self.contacts.keys() - here:
            del self.contacts[gone]
            self.readings.pop(gone, None)
            self._rates.pop(gone, None)
            self._restores.pop(gone, None)

    def take_changelogs(self, changelogs: tuple[ChangelogSettings, ...], now: Moment) -> None:
        """Take the stores' changelogs as a router tells of them."""
        self.changelogs, self.changelogs_at = changelogs, now

    def routers_failed(self, message: str, now: Moment) -> None:
        """Note that no router answers. The readings so far stay, and grow old."""
        self.trouble = Trouble(message, now if self.trouble is None else self.trouble.since)

    def take_node(self, reading: NodeReading) -> None:
        """Take a node's answer."""
        name = reading.instance_id
        before = self.readings.get(name)
        for place, count in answered_between(before, reading).items():
            self._counted[place] = self._counted.get(place, 0) + count
        if before is None or before.incarnation != reading.incarnation:
            self._rates[name] = RestoreRates()
        restores = self._rates[name].take(reading.restores(), reading.at_s)
        self._restores[name] = {(each.task, each.store or "", each.partition or 0): each for each in restores}
        self.readings[name] = reading
        self.note_contact(name, Contact.ANSWERS, "", reading.at_s)

    def note_contact(self, instance_id: str, contact: Contact, why: str, at_s: float) -> None:
        """Note how a question to a node went."""
        known = self.contacts.get(instance_id)
        since_s = known.since_s if known is not None and known.contact is contact else at_s
        self.contacts[instance_id] = NodeContact(contact, since_s, why)

    def sample(self, now: Moment) -> bool:
        """Add a column to the past if one is due. Return whether it was."""
        if self.fleet is None:
            return False
        elapsed_s = COLUMN_S if self._last_column is None else now.at_s - self._last_column.at_s
        if elapsed_s < COLUMN_S:
            return False
        heard = any(now.at_s - reading.at_s < QUIET_S for reading in self.readings.values())
        is_counted = heard and self._last_column is not None
        lags, counted = self._lags_of_actives(now.at_s), self._counted_by_place()
        actives = {task.task: task.active for task in self.fleet.tasks}
        stores = {
            store.name: self._column(store, lags, actives, counted, elapsed_s if is_counted else None)
            for store in self.fleet.stores
        }
        self.samples.add(SampleColumn.of(now.epoch_ms, stores, self.routing.failed_per_s))
        self._last_column, self._last_actives, self._counted = now, actives, {}
        return True

    def _column(
        self,
        store: Store,
        lags: Mapping[StorePlace, int | None],
        actives: Mapping[str, str | None],
        counted: Mapping[StorePlace, int],
        elapsed_s: float | None,
    ) -> StoreColumn:
        """Return a store's column; without `elapsed_s` nobody has counted lookups."""
        count = partition_count(store)
        column = StoreColumn(array("f", [UNKNOWN]) * count, array("f", [UNKNOWN]) * count, b"", b"")
        states, moved = bytearray(count), bytearray(count)
        for now in partitions_of(store, self.tasks, self.contacts, range(count)):
            place = (store.name, now.partition)
            lag = lags.get(place, now.lag)
            states[now.partition] = now.condition
            before = self._last_actives.get(now.task, actives.get(now.task))
            moved[now.partition] = before != actives.get(now.task)
            if lag is not None and now.condition not in {Condition.NOBODY, Condition.SILENT}:
                column.lags[now.partition] = lag
            if elapsed_s is not None:
                column.lookups[now.partition] = counted.get(place, 0) / elapsed_s
        return StoreColumn(column.lookups, column.lags, bytes(states), bytes(moved))

    def _counted_by_place(self) -> Mapping[StorePlace, int]:
        """Return the lookups since the last column; those of a global store's partitions count for the whole of it."""
        counted = dict(self._counted)
        for store in () if self.fleet is None else self.fleet.stores:
            if store.is_global:
                places = [(store.name, partition) for partition in range(store.partition_count)]
                counted[places[0]] = sum(counted.pop(place, 0) for place in places)
        return counted

    def _lags_of_actives(self, now_s: float) -> dict[StorePlace, int | None]:
        """Return the lag of each active replica, as its node last said it."""
        return {
            (each.store, each.partition): each.lag
            for reading in self.readings.values()
            if now_s - reading.at_s < QUIET_S
            for each in reading.replicas
            if each.role == "ACTIVE"
        }
