"""The nodes, and what a drain of one would do. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import Fleet, Node
from statehouse.contract.membership import LEAVING_STATES, SILENT, TaskState
from statehouse.web.pages.blocks import paged
from statehouse.web.pages.contacts import Contact, NodeContact
from statehouse.web.pages.epochs import task_order
from statehouse.web.pages.partitions import BEHIND
from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.views.attention import silent_nodes

NODES_A_PAGE: Final = 50
TASKS_SHOWN: Final = 200
_UNASKED: Final = NodeContact(Contact.UNASKED, 0.0)


@dataclass(frozen=True, slots=True)
class NodeEntry:
    """A node. `silent_ms`: how long it has not answered, or not been heard if that is a session; None: neither."""

    instance_id: str
    address: str
    rack: str
    state: str
    version: str
    epoch: int
    is_behind: bool
    capacity: int
    dynamic: bool
    heartbeat_age_ms: int
    contact: Contact
    silent_ms: int | None
    why: str
    asked_last: bool
    actives: int
    standbys: int
    warm_ups: int
    restoring: int
    failed: int
    heartbeats_failing_ms: int | None

    @property
    def is_silent(self) -> bool:
        """Whether it doesn't answer, or has sent no heartbeat for a session."""
        return self.contact is Contact.SILENT or self.state == SILENT

    @property
    def silence(self) -> str:
        """How long it has been silent: "SILENT 53 s" after a session without a heartbeat, before that in small."""
        seconds = (self.silent_ms or 0) // 1_000
        return f"{SILENT if self.state == SILENT else SILENT.lower()} {seconds:,} s"

    @property
    def can_drain(self) -> bool:
        """Whether an operator can make it drain."""
        return not self.is_silent and self.state not in LEAVING_STATES


@dataclass(frozen=True, slots=True)
class NodesView:
    """A page of nodes, by instance id."""

    total: int
    silent: int
    page: int
    pages: int
    rows: tuple[NodeEntry, ...]


@dataclass(frozen=True, slots=True)
class HandOver:
    """A task that a drain makes others take over. `to`: caught-up standbys; one of them can take it immediately."""

    task: str
    to: tuple[str, ...]
    behind: tuple[str, ...]
    """Standbys that are not caught up."""


@dataclass(frozen=True, slots=True)
class OneNodeView:
    """A node in full, and what a drain of it would move."""

    node: NodeEntry
    hand_overs: tuple[HandOver, ...]
    ready: int
    """Tasks among them that a caught-up standby can take over immediately."""
    takers: tuple[tuple[str, int], ...]
    """The nodes that can take tasks over immediately, with how many each could take; the most first."""
    not_shown: int
    others: int
    """Nodes that could take tasks over."""
    standby_of: int
    csrf_token: str = ""


def nodes_view(recorder: Recorder, now: Moment, page: int) -> NodesView:
    """Return a page of the nodes; a page beyond the last is the last."""
    fleet = recorder.fleet
    nodes = () if fleet is None else fleet.nodes
    page, pages, shown = paged(nodes, NODES_A_PAGE, page)
    holdings = _holdings(fleet)
    rows = tuple(_row(recorder, node, holdings, now) for node in shown)
    return NodesView(len(nodes), len(silent_nodes(recorder)), page, pages, rows)


def node_view(recorder: Recorder, now: Moment, instance_id: str) -> OneNodeView | None:
    """Return a node, None if there is none of this name."""
    fleet = recorder.fleet
    node = None if fleet is None else find_node(fleet, instance_id)
    if fleet is None or node is None:
        return None
    hand_overs = tuple(_hand_overs(fleet, recorder.contacts, instance_id))
    takers = Counter(name for each in hand_overs for name in each.to)
    holdings = _holdings(fleet)
    rows = [_row(recorder, each, holdings, now) for each in fleet.nodes]
    return OneNodeView(
        next(row for row in rows if row.instance_id == instance_id),
        hand_overs[:TASKS_SHOWN],
        sum(bool(each.to) for each in hand_overs),
        tuple(sorted(takers.items(), key=lambda taker: (-taker[1], taker[0]))),
        max(0, len(hand_overs) - TASKS_SHOWN),
        sum(row.can_drain for row in rows if row.instance_id != instance_id),
        sum(instance_id in task.standbys for task in fleet.tasks),
    )


def find_node(fleet: Fleet, instance_id: str) -> Node | None:
    """Return a node of the fleet, None if there is none of this name."""
    return next((node for node in fleet.nodes if node.host.instance_id == instance_id), None)


def _hand_overs(fleet: Fleet, contacts: Mapping[str, NodeContact], instance_id: str) -> list[HandOver]:
    found = []
    for task in fleet.tasks:
        if task.active != instance_id:
            continue
        reports = {each.instance_id: each for each in task.replicas}
        caught_up: list[str] = []
        behind: list[str] = []
        for name in (*task.warm_ups, *task.standbys):
            report = reports.get(name)
            is_ready = (
                report is not None
                and report.state == TaskState.RUNNING
                and report.lag is not None
                and report.lag <= BEHIND
                and contacts.get(name, _UNASKED).contact is not Contact.SILENT
            )
            (caught_up if is_ready else behind).append(name)
        found.append(HandOver(task.task, tuple(caught_up), tuple(behind)))
    return sorted(found, key=lambda each: task_order(each.task))


def _holdings(fleet: Fleet | None) -> dict[str, Counter[str]]:
    """Return how many tasks each node holds, by role."""
    holdings: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task in () if fleet is None else fleet.tasks:
        if task.active is not None:
            holdings[task.active]["active"] += 1
        for name in task.standbys:
            holdings[name]["standby"] += 1
        for name in task.warm_ups:
            holdings[name]["warm_up"] += 1
        for replica in task.replicas:
            if replica.state in {TaskState.RESTORING, TaskState.CREATED}:
                holdings[replica.instance_id]["restoring"] += 1
            elif replica.state == TaskState.ERROR:
                holdings[replica.instance_id]["failed"] += 1
    return holdings


def _row(recorder: Recorder, node: Node, holdings: Mapping[str, Counter[str]], now: Moment) -> NodeEntry:
    name = node.host.instance_id
    known = recorder.contacts.get(name, _UNASKED)
    holds = holdings.get(name, Counter())
    age_ms = node.heartbeat_age_ms + now.ms_since(recorder.fleet_at.at_s)
    reading = recorder.readings.get(name)
    silent_ms = now.ms_since(known.since_s) if known.contact is Contact.SILENT else None
    return NodeEntry(
        name,
        f"{node.host.host}:{node.host.port}",
        node.rack,
        node.state if reading is None or node.state == SILENT else reading.state,
        node.version,
        node.epoch,
        recorder.fleet is not None and node.epoch < recorder.fleet.epoch,
        node.capacity,
        node.dynamic,
        age_ms,
        known.contact,
        age_ms if node.state == SILENT else silent_ms,
        known.why,
        not node.reachable,
        holds["active"],
        holds["standby"],
        holds["warm_up"],
        holds["restoring"],
        holds["failed"],
        None if reading is None else reading.heartbeats_failing_ms,
    )
