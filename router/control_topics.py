"""The control topics as a router reads them: their records go to the event loop, decoded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import structlog

from router.fleet.readiness import longest_silence_s
from router.fleet.tracker import FleetTracker
from router.fleet_api.inputs import Inputs
from router.fleet_api.queries import ControllerReport, ProcessorQueries
from statehouse.contract.assignment import CONTROLLER_KEY, AssignmentReader, read_controller_record
from statehouse.contract.membership import decode_member
from statehouse.contract.processor_reports import ReportTimes, decode_commit, record_age_s, written_at_s
from statehouse.contract.topology import assignment_topic, commits_topic, members_topic
from statehouse.contract.version_names import store_at, version_in, wire_version
from statehouse.contract.versions import VERSIONS_KEY, Versions, decode_versions
from statehouse.errors import ContractError
from statehouse.kafka.control_log import ControlLogReader, OnRecord
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.background import as_error
from statehouse.runtime.clocks import process_clock
from statehouse.settings import RouterSettings

log = structlog.get_logger(__name__)


class ControlTopicReaders:
    """The readers of the control topics: their threads decode records and hand them to the event loop.

    `on_broken(error)` is called on the event loop when a defect has ended a reader, or what a record leads to has one:
    a router that lacks a record would only look healthy. `on_versions` takes the record of versions, from where the
    topic was read to its end.
    """

    def __init__(
        self,
        settings: RouterSettings,
        tracker: FleetTracker,
        inputs: Inputs,
        queries: ProcessorQueries,
        controller: ControllerReport,
        skipped: UnreadableRecords,
        loop: asyncio.AbstractEventLoop,
        on_broken: Callable[[Exception], None],
        *,
        on_versions: Callable[[Versions], None] | None = None,
    ) -> None:
        self._version = wire_version(version_in(settings.application_id))
        self._on_versions, self._versions = on_versions, Versions()
        self._is_read = False
        self._tracker, self._inputs, self._queries, self._loop = tracker, inputs, queries, loop
        self._controller, self._on_broken = controller, on_broken
        self._assignments = AssignmentReader(partial(skipped.note, "assignment"))
        self._skipped = skipped

        def reader(
            kind: str,
            topic: str,
            on_record: OnRecord,
            on_contact: Callable[[], None] = lambda: None,
            on_anew: Callable[[], None] = lambda: None,
        ) -> ControlLogReader:
            return ControlLogReader(
                settings.brokers,
                topic,
                on_record,
                client_id=f"{settings.application_id}-router",
                on_broken=lambda error: self._call_on_loop(on_broken, error),
                on_contact=on_contact,
                on_anew=on_anew,
                on_refused=partial(skipped.note, kind),
                on_unsigned=partial(skipped.unsigned, kind),
            )

        name = settings.application_id
        self._assignment_log = reader(
            "assignment",
            assignment_topic(name),
            self._on_assignment_record,
            self._on_assignments_read,
            self._begin_anew,
        )
        self._assignments.begin()
        self._member_log = reader(
            "members",
            members_topic(name),
            self._on_member_record,
            lambda: self._call_on_loop(tracker.on_caught_up, "members"),
        )
        self._report_times = ReportTimes()
        self._commit_log = reader(
            "commits", commits_topic(name), self._on_commit_record, lambda: self._call_on_loop(inputs.on_read)
        )
        self._logs = (self._assignment_log, self._member_log, self._commit_log)

    def silence_s(self) -> float | None:
        """Return seconds since assignment and heartbeats were last known to be read to their ends; None if never."""
        return longest_silence_s([each.seconds_since_contact() for each in (self._assignment_log, self._member_log)])

    def start(self) -> None:
        """Begin to read."""
        for each in self._logs:
            each.start()

    async def stop(self) -> None:
        """Stop reading; the wait for the threads does not hold up the loop."""
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in self._logs))

    def _on_assignment_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if key == CONTROLLER_KEY:
            self._on_controller_record(value, timestamp_ms)
            return
        if key == VERSIONS_KEY:
            self._on_versions_record(value)
            return
        assignment = self._assignments.feed(key, value)
        if assignment is not None:
            self._call_on_loop(self._tracker.on_assignment, assignment)

    def _begin_anew(self) -> None:
        self._assignments.begin()
        self._versions, self._is_read = Versions(), False

    def _on_versions_record(self, value: bytes | None) -> None:
        try:
            self._versions = Versions() if value is None else decode_versions(value)
        except ContractError as error:
            self._skipped.note("assignment", VERSIONS_KEY, error)
            return
        if self._is_read:
            self._tell_versions()

    def _tell_versions(self) -> None:
        if self._on_versions is not None:
            self._call_on_loop(self._on_versions, self._versions)

    def _on_assignments_read(self) -> None:
        if not self._is_read:
            # Those before it in the log are of the past.
            self._is_read = True
            self._tell_versions()
        assignment = self._assignments.end_reached()
        if assignment is not None:
            self._call_on_loop(self._tracker.on_first_assignment, assignment)
        self._call_on_loop(self._tracker.on_caught_up, "assignment")

    def _on_controller_record(self, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            return
        try:
            record = read_controller_record(value)
        except ContractError as error:
            self._skipped.note("assignment", CONTROLLER_KEY, error)
            return
        now_s, silence_s = time.monotonic(), self._assignment_log.seconds_since_contact()
        at_s = written_at_s(timestamp_ms, now_s, process_clock().now_ms(), silence_s)
        self._call_on_loop(self._controller.on_record, record.controller, at_s)

    def _on_member_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            self._call_on_loop(self._tracker.on_member_left, (key or b"").decode(errors="replace"))
            return
        try:
            member = decode_member(key, value, timestamp_ms, process_clock().now_ms())
        except ContractError as error:
            self._skipped.note("members", key, error)
            return
        # Records from before the start must not look fresh. Later ones count as new: other machines' clocks may differ.
        is_new = self._member_log.caught_up
        age_s = 0.0 if is_new else record_age_s(timestamp_ms, process_clock().now_ms())
        self._call_on_loop(self._tracker.on_member, member, age_s)

    def _on_commit_record(self, key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
        if value is None:
            store = (key or b"").decode(errors="replace")
            self._call_on_loop(self._queries.on_reset, store)
            self._call_on_loop(self._inputs.on_reset, store)
            return
        try:
            commit = decode_commit(key, value)
            commit.query_id = store_at(commit.query_id, self._version)
        except ContractError as error:
            self._skipped.note("commits", key, error)
            return
        self._call_on_loop(self._inputs.on_commit, commit)
        now_s, silence_s = time.monotonic(), self._commit_log.seconds_since_contact()
        at_s = self._report_times.written_at_s(commit, timestamp_ms, now_s, process_clock().now_ms(), silence_s)
        self._call_on_loop(self._queries.on_commit, commit, at_s, timestamp_ms)

    def _call_on_loop(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(self._or_break, callback, *args)
        except RuntimeError:  # the loop is closed: the process is ending
            log.debug("record after the end")

    def _or_break(self, callback: Callable[..., None], *args: object) -> None:
        try:
            callback(*args)
        except BaseException as caught:  # noqa: BLE001 - `serve` raises it
            self._on_broken(as_error(caught))
