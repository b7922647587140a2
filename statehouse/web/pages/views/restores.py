"""The restores under way: how far each is, how fast, and when it will be done. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from statehouse.client.node_readings import UNDER_WAY, ReplicaReading, TransferReading
from statehouse.contract.membership import TaskState
from statehouse.web.pages.blocks import paged
from statehouse.web.pages.contacts import Contact
from statehouse.web.pages.epochs import task_order
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.views.attention import silent_nodes

RESTORES_A_PAGE: Final = 100
_SHOWN: Final = UNDER_WAY | {TaskState.ERROR}


@dataclass(frozen=True, slots=True)
class RestoreRow:
    """A store's partition that a node restores.

    Attributes:
        done: share of the changelog that is read, 0 to 1; None: not known.
        left: offsets to read.
        per_s: offsets a second, lately.
        peer: whose files are fetched: then bytes of them are meant, not of the changelog. Empty otherwise.
        eta_ms: until the end if it goes on like this.
        error: why the task has failed, if it has.
        state: of the task, or "silent" if its node is: nothing is known of what it restores then.

    """

    node: str
    task: str
    role: str
    store: str
    partition: int
    state: str
    restored: int
    done: float | None
    left: int | None
    per_s: float | None
    eta_ms: int | None
    error: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class RestoresView:
    """A page of restores, the longest first."""

    total: int
    failed: int
    """Replicas that can't be restored: their tasks are in error."""
    left: int
    left_bytes: int
    """Of files of other nodes that are fetched."""
    per_s: float
    eta_ms: int | None
    page: int
    pages: int
    unheard: int
    """Nodes that have not said how their tasks do."""
    rows: tuple[RestoreRow, ...]


def restores_view(recorder: Recorder, page: int) -> RestoresView:
    """Return a page of the restores; a page beyond the last is the last."""
    rows = sorted(_rows(recorder), key=lambda row: (-(row.left or 0), row.node, task_order(row.task), row.store))
    page, pages, shown = paged(rows, RESTORES_A_PAGE, page)
    nodes = () if recorder.fleet is None else recorder.fleet.nodes
    etas = [row.eta_ms for row in rows if row.eta_ms is not None]
    return RestoresView(
        len(rows),
        sum(row.state == TaskState.ERROR for row in rows),
        sum(row.left or 0 for row in rows if not row.peer),
        sum(row.left or 0 for row in rows if row.peer),
        sum(row.per_s or 0.0 for row in rows if not row.peer),
        max(etas, default=None),
        page,
        pages,
        sum(node.host.instance_id not in recorder.readings for node in nodes),
        tuple(shown),
    )


def _rows(recorder: Recorder) -> Iterator[RestoreRow]:
    silent = set(silent_nodes(recorder))
    for name, reading in recorder.readings.items():
        is_silent = name in silent
        for each in reading.replicas:
            if each.state in _SHOWN:
                row = _row(recorder, name, each, each.state, is_silent=is_silent and each.state != TaskState.ERROR)
                yield replace(row, restored=each.restored_records, error=each.error)
        for files in reading.transfers:
            yield replace(_row(recorder, name, files, TaskState.CREATED, is_silent=is_silent), peer=files.peer)


def _row(
    recorder: Recorder, name: str, each: ReplicaReading | TransferReading, state: str, *, is_silent: bool
) -> RestoreRow:
    restore = None if is_silent else recorder.restore(name, each.place)
    share, eta_s = (None, None) if restore is None else (restore.share, restore.eta_s)
    return RestoreRow(
        name,
        each.task,
        each.role,
        each.store,
        each.partition,
        Contact.SILENT if is_silent else state,
        0,
        None if share is None else round(share, 4),
        None if restore is None else restore.left,
        None if restore is None else restore.per_s,
        None if eta_s is None else round(eta_s * 1_000),
        "",
    )
