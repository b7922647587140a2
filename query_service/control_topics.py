"""Control topics: reads assignments, members and the processor's commits, and passes on what concerns the node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, TypeVarTuple

import structlog
from confluent_kafka.admin import AclOperation

from query_service.reads.batch_spans import BatchSpans
from query_service.reads.fleet_view import FleetView, view_of
from query_service.replicas.replica import monotonic_and_wall_ms
from query_service.states.ownership import NodeOwnership
from statehouse.contract.assignment import Assignment
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.membership import Member
from statehouse.contract.placement import NO_PLACEMENTS, FleetPlacements, StorePlacement
from statehouse.contract.processor_reports import ProcessorReports, ReportTimes, decode_commit
from statehouse.contract.topology import assignment_topic, commits_topic, members_topic
from statehouse.contract.version_names import store_at, version_in, wire_version
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.background import as_error
from statehouse.serdes.plugins import Serdes
from statehouse.settings import NodeSettings

log = structlog.get_logger(__name__)

# How often the end of the commits topic is asked for: what arrives is known to have been written since.
_COMMITS_CONFIRM_S: Final = 0.5

Told = TypeVarTuple("Told")


class ControlTopics:
    """Reads the topics on threads, and brings their records to the event loop and to the node's ownership.

    `reports` has what the processor last reported for each store, `batch_spans` the spans of its batches, and `moments`
    where these end.

    These callbacks run on the event loop: `on_view(view)` when the view for reads has changed,
    `on_assignment(assignment)` for each newer epoch, `on_report(store)` when the processor has reported for a store or
    nothing is known of it any more, `on_superseded(newer)` when another process uses our instance id,
    `on_defect(error)` when a record could not be handled. `on_thread_defect(error)` runs on the thread that the defect
    ended.
    """

    def __init__(
        self,
        settings: NodeSettings,
        client_id: str,
        ownership: NodeOwnership,
        skipped: UnreadableRecords,
        *,
        on_view: Callable[[FleetView], None],
        on_assignment: Callable[[Assignment], None],
        on_superseded: Callable[[Member], None],
        on_defect: Callable[[Exception], None],
        on_thread_defect: Callable[[Exception], None],
        on_report: Callable[[str], None],
    ) -> None:
        self._version = wire_version(version_in(settings.application_id))
        self.members_known = asyncio.Event()
        self.reports = ProcessorReports()
        self.batch_spans = BatchSpans()
        self.moments = CommittedMoments()
        self._loop = asyncio.get_running_loop()
        self._ownership, self._skipped = ownership, skipped
        self._placements, self._view = FleetPlacements(), FleetView()
        self._own: Member | None = None
        self._serdes = Serdes(settings.serde_options)
        self._on_view, self._on_assignment, self._on_superseded = on_view, on_assignment, on_superseded
        self._on_defect, self._on_report = on_defect, on_report
        self._assignment_log = ControlLogReader(
            settings.brokers,
            assignment_topic(settings.application_id),
            self._on_loop(self._take_assignment),
            client_id=client_id,
            on_contact=self._on_loop(self._assignment_read),
            on_anew=self._on_loop(self._ownership.assignments_begin_anew),
            on_broken=on_thread_defect,
            confirm_interval_s=settings.heartbeat_interval_ms / 2000,
            on_refused=partial(skipped.note, "assignment"),
            on_unsigned=partial(skipped.unsigned, "assignment"),
        )
        self._members_log = ControlLogReader(
            settings.brokers,
            members_topic(settings.application_id),
            self._on_loop(self._take_member),
            client_id=client_id,
            on_contact=self._on_loop(self._members_read),
            on_broken=on_thread_defect,
            needs=(AclOperation.READ, AclOperation.WRITE),  # of heartbeats
            on_refused=partial(skipped.note, "members"),
            on_unsigned=partial(skipped.unsigned, "members"),
        )
        self._take_commit_on_loop = self._on_loop(self._take_commit)
        self._commits_were_read_on_loop = self._on_loop(self._commits_were_read)
        self._report_times = ReportTimes()
        self._commits_log = ControlLogReader(
            settings.brokers,
            commits_topic(settings.application_id),
            self._commit_read,
            client_id=client_id,
            on_contact=self._commits_confirmed,
            on_broken=on_thread_defect,
            confirm_interval_s=_COMMITS_CONFIRM_S,
            on_refused=partial(skipped.note, "commits"),
            on_unsigned=partial(skipped.unsigned, "commits"),
        )

    @property
    def silence_s(self) -> float | None:
        """Seconds since this node was last known to have read the assignment topic to its end; None if it never was."""
        return self._assignment_log.seconds_since_contact()

    def is_confirmed(self) -> bool:
        """Whether the node has been in touch with Kafka within the session timeout, and may claim to be active."""
        return self._ownership.is_confirmed(self.silence_s)

    def confirmed_for_s(self) -> float:
        """Return for how many seconds more that will be so without news; 0 if it isn't."""
        return self._ownership.confirmed_for_s(self.silence_s)

    def start(self) -> None:
        """Start to read the topics."""
        self._assignment_log.start()
        self._members_log.start()
        self._commits_log.start()

    async def stop(self) -> None:
        """Stop reading."""
        for log in (self._assignment_log, self._members_log, self._commits_log):
            await asyncio.to_thread(log.stop)

    def _take_assignment(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        self._act_on(self._ownership.take_assignment(key, value))

    def _assignment_read(self) -> None:
        self._act_on(self._ownership.assignments_read())

    def _act_on(self, assignment: Assignment | None) -> None:
        if assignment is None:
            return
        view = self._compile_view()
        for store, reason in view.unusable.items():
            log.error("store can't be served by this version; its state is kept up to date", store=store, reason=reason)
        wanted = self._ownership.wanted
        log.info("assignment taken", epoch=assignment.epoch, reason=assignment.reason, tasks=len(wanted))
        self._on_assignment(assignment)

    def _take_member(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        _, now_ms = monotonic_and_wall_ms()
        try:
            if self._ownership.take_member(key, value, timestamp_ms, now_ms):
                self._compile_view()
        except ContractError as error:
            self._skipped.note("members", key, error)
        if (newer := self._ownership.superseded_by) is not None:
            self._on_superseded(newer)

    def _commit_read(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        """Note on the reader's thread when a commit was read: the event loop may be late."""
        silence_s = self._commits_log.seconds_since_contact()
        self._take_commit_on_loop(key, value, timestamp_ms, *monotonic_and_wall_ms(), silence_s)

    def _take_commit(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        now_s: float,
        wall_ms: int,
        silence_s: float | None,
    ) -> None:
        if value is None:
            store = (key or b"").decode(errors="replace")
            self.reports.forget(store)
            self.batch_spans.forget(store)
            self.moments.forget(store)
            self._on_report(store)
            return
        try:
            commit = decode_commit(key, value)
            commit.query_id = store_at(commit.query_id, self._version)
        except ContractError as error:
            self._skipped.note("commits", key, error)
            return
        self.batch_spans.take(commit)
        self.moments.take(commit)
        at_s = self._report_times.written_at_s(commit, timestamp_ms, now_s, wall_ms, silence_s)
        self.reports.take(commit, at_s)
        self._on_report(commit.store)

    def _commits_confirmed(self) -> None:
        """Note on the reader's thread up to when it has read all: it reads on meanwhile."""
        self._commits_were_read_on_loop(time.monotonic() - (self._commits_log.seconds_since_contact() or 0.0))

    def _commits_were_read(self, read_at_s: float) -> None:
        self.moments.read_at_s = read_at_s

    def take_own(self, heartbeat: Member) -> None:
        """Take this node's own heartbeat as it is written: what it says of its stores counts here immediately."""
        self._own = heartbeat
        placements = self._current_placements()
        if placements != self._view.placements:
            self._view = replace(self._view, placements=placements)
            self._on_view(self._view)

    def _current_placements(self) -> Mapping[str, StorePlacement]:
        members = self._ownership.members
        self._placements.take(members if self._own is None else {**members, self._own.instance_id: self._own})
        assignment = self._ownership.assignment
        return NO_PLACEMENTS if assignment is None else self._placements.of(assignment.stores)

    def _compile_view(self) -> FleetView:
        assignment, members = self._ownership.assignment, self._ownership.members
        self._view = view = view_of(assignment, members, self._serdes, self._current_placements())
        self._on_view(view)
        return view

    def _members_read(self) -> None:
        """All members that existed at the start are known: from now on this node may write heartbeats."""
        self._ownership.succeed()
        self.members_known.set()

    def _on_loop(self, take: Callable[[*Told], None]) -> Callable[[*Told], None]:
        """Bring what a control log's reader tells from its thread to the event loop."""

        def take_or_break(*told: *Told) -> None:
            try:
                take(*told)
            except BaseException as caught:  # noqa: BLE001 - the node must not go on without this record
                self._on_defect(as_error(caught))

        def on_thread(*told: *Told) -> None:
            self._loop.call_soon_threadsafe(take_or_break, *told)

        return on_thread
