"""The thread of an ownership controller: it acts, or stands by while another controller acts.

One controller of an application acts: it publishes assignments, and a record of itself at each heartbeat interval. The
others stand by, and one of them takes over one session timeout after the last record. While no controller acts, nodes
still serve and follow their changelogs and routers still fall back to standbys; only reassignment waits.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection

import structlog

from processor.ownership.acting import TICK_S, ActingController, ControllerCallbacks, WatchedFleet
from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine.core import OwnershipCore
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.assignment_log import AssignmentLog
from processor.ownership.topics.members_reader import MembersReader
from processor.ownership.topics.publisher import FencedError
from processor.ownership.topics.topic_watcher import TopicWatcher
from processor.states.lifecycle import ControllerState
from statehouse.contract.topology import control_topic_names
from statehouse.errors import ConfigurationError
from statehouse.runtime.background import as_error
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

_PUBLISHING = BackoffPolicy("publish_assignment", first_s=0.1, longest_s=5.0)
_STOPS_WITHIN_S = 20.0


class OwnershipController:
    """Decides and publishes which nodes serve which tasks while it acts; stands by while another controller does."""

    def __init__(
        self,
        brokers: Brokers | str,
        application_id: str,
        stores: Collection[StoreDeclaration] | None,
        settings: OwnershipSettings | None,
        callbacks: ControllerCallbacks | None = None,
        sources: Collection[str] = (),
    ) -> None:
        """Prepare; `start()` starts the thread. The controller waits for its topics if they don't exist yet.

        With stores and settings it acts as soon as it is started, instead of the controller before. With None for both
        it is a standby controller: it stands by first, and acts with the stores of the last assignment and the settings
        of the controller before it. `sources`: topics that the application reads.
        """
        self._brokers, self._application_id = brokers, application_id
        self._stores, self._settings = None if stores is None else tuple(stores), settings
        self._calls = ControllerCallbacks() if callbacks is None else callbacks
        self._name = uuid.uuid4().hex[:12]
        self._fleet: WatchedFleet | None = None
        self._before: ControllerRecord | None = None
        self._defect: Exception | None = None
        self._backoff = Backoff(_PUBLISHING, self._calls.on_pause)
        self._stop = threading.Event()
        self._sources = tuple(sources)
        self._topics = TopicWatcher(brokers, f"{application_id}-{self._name}", self._relied_on)
        self._thread = threading.Thread(target=self._run, name=f"ownership-{application_id}", daemon=True)

    def start(self) -> None:
        """Start the thread, and one that looks at the topics."""
        self._thread.start()
        self._topics.start()

    def stop(self) -> None:
        """Stop; the assignment stays in force, and a standby controller takes over immediately if this one acted."""
        self._stop.set()
        self._topics.stop()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_STOPS_WITHIN_S)

    def _relied_on(self) -> dict[str, int | None]:
        """Return the topics that must stay as they are, and how many partitions they must have."""
        fleet = self._fleet
        stores = {} if fleet is None else fleet.core.assignment.stores
        return {
            **dict.fromkeys(self._sources),
            **{store.changelog_topic: store.partition_count for store in stores.values()},
            **dict.fromkeys(control_topic_names(self._application_id), 1),
        }

    def _run(self) -> None:
        self._calls.on_state(ControllerState.STARTING)
        try:
            fleet = self._stood_by() if self._settings is None else self._prepared(self._settings)
            while fleet is not None and not self._stop.is_set():
                try:
                    self._act(fleet)
                except FencedError as error:
                    log.warning("another controller acts: this one stands by", reason=str(error))
                    self._calls.on_state(ControllerState.FENCED)
                    fleet = self._stood_by()
        except BaseException as caught:  # the driver must learn of it, whatever it is
            log.exception("ownership controller stopped")
            self._calls.on_state(ControllerState.ERROR)
            self._calls.on_fatal(as_error(caught))
        finally:
            self._stop.set()
            if self._fleet is not None:
                self._fleet.members.stop()
            self._calls.on_state(ControllerState.NOT_RUNNING)

    def _prepared(self, settings: OwnershipSettings) -> WatchedFleet:
        """Read the assignment in force, check the declared stores against it, and read the members.

        Only then may the controller before be fenced.

        Raises:
            ConfigurationError: the declared stores don't fit the published ones, or a newer version published them
                in a format that this one doesn't read.

        """
        fleet = self._watch(settings)
        read = self._read_log()
        if strange := read.of_newer_format():
            raise ConfigurationError(
                f"the assignment's record {strange} is of a newer version: start a processor of that version, or of "
                "one that reads its format (docs/upgrading.md)"
            )
        fleet.core.restore(read.assignment)
        fleet.core.declare(self._stores or ())
        while not self._stop.is_set() and not fleet.members.caught_up:
            self._check()
            fleet.members.drain(fleet.core, TICK_S)
        fleet.members.drain(fleet.core, 0.0)
        return fleet

    def _watch(self, settings: OwnershipSettings) -> WatchedFleet:
        """Begin to follow the members, with these settings."""
        if self._fleet is not None:
            self._fleet.members.stop()
        calls = self._calls
        members = MembersReader(
            self._brokers, self._application_id, self._reader_broke, calls.on_unreadable, calls.on_unsigned
        )
        self._fleet = WatchedFleet(OwnershipCore(settings, self._name), members, settings)
        members.start()
        return self._fleet

    def _act(self, fleet: WatchedFleet) -> None:
        """Take over and act until stopped.

        Raises:
            FencedError: another controller has taken over.

        """
        acting = ActingController(
            self._brokers,
            self._application_id,
            self._name,
            fleet,
            is_standby=self._settings is None,
            stop=self._stop,
            read_log=self._read_log,
            own_log=self._assignment_log(),
            check=self._check,
            backoff=self._backoff,
            callbacks=self._calls,
        )
        try:
            if not acting.take_over():
                return
            _start_core(fleet)
            log.info("ownership controller started", epoch=fleet.core.assignment.epoch, controller=self._name)
            acting.run()
            acting.resign()
        finally:
            self._before = acting.before
            acting.close()

    def _stood_by(self) -> WatchedFleet | None:
        """Stand by until this controller should take over; return the fleet as it was followed, None if stopped."""
        self._calls.on_state(ControllerState.STANDBY)
        if self._fleet is not None:
            self._fleet.core.stand_by()
        watched = self._assignment_log(self._before)
        watched.start()
        refused = ""
        try:
            while not self._stop.is_set():
                self._check()
                fleet = self._followed(watched)
                if fleet is None:
                    self._stop.wait(TICK_S)
                elif watched.is_takeover_due and fleet.core.is_started:
                    strange = watched.not_understood() if self._stores is None else ""
                    if not strange:
                        log.info("the acting controller is silent: this one takes over", silent=watched.acting)
                        self._calls.on_state(ControllerState.STARTING)
                        return fleet
                    if strange != refused:
                        refused = strange
                        log.error("not taken over: another version wrote the record; upgrade this one", key=strange)
        finally:
            watched.stop()
        return None

    def _followed(self, watched: AssignmentLog) -> WatchedFleet | None:
        """Bring the core up to what is known by now; None as long as nobody's settings are known."""
        acting, assignment = watched.acting, watched.assignment
        fleet = self._fleet
        if self._settings is None and acting is not None and (fleet is None or fleet.settings != acting.settings):
            fleet = self._watch(acting.settings)
            fleet.core.inherit()
            fleet.core.stand_by()
        if fleet is None:
            return None
        now = time.monotonic()
        if assignment is not None and assignment.epoch != fleet.core.assignment.epoch:
            fleet.core.restore(assignment, now)
        caught_up = fleet.members.caught_up
        fleet.members.drain(fleet.core, TICK_S)
        if caught_up:
            _start_core(fleet)
        fleet.note_contact()
        fleet.core.tick(time.monotonic())
        return fleet

    def _assignment_log(self, before: ControllerRecord | None = None) -> AssignmentLog:
        calls = self._calls
        return AssignmentLog(
            self._brokers, self._application_id, self._reader_broke, calls.on_unreadable, calls.on_unsigned, before
        )

    def _read_log(self) -> AssignmentLog:
        """Read the assignment topic to its end, or until stopped."""
        read = self._assignment_log()
        read.start()
        try:
            while not self._stop.is_set() and not read.wait_caught_up(TICK_S):
                self._check()
        finally:
            read.stop()
        return read

    def _reader_broke(self, error: Exception) -> None:
        """Called on a reader's thread when it fails; otherwise all members would just seem silent."""
        self._defect = error

    def _check(self) -> None:
        if self._defect is not None:
            raise self._defect


def _start_core(fleet: WatchedFleet) -> None:
    if not fleet.core.is_started:
        fleet.core.start(time.monotonic())
