"""The controller against a real broker; its nodes are heartbeats written by the test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Producer

from processor.ownership.acting import ControllerCallbacks
from processor.ownership.controller import OwnershipController
from processor.ownership.declarations import StoreDeclaration
from processor.ownership.machine import sessions
from processor.ownership.machine.core import OwnershipCore
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.members_reader import MembersReader
from processor.ownership.topics.observed import check_published
from processor.ownership.topics.publisher import AssignmentPublisher, PublishError
from processor.reports.metrics import ProcessorMetrics
from processor.states.lifecycle import ControllerState, next_state
from statehouse.contract.assignment import Assignment, AssignmentReader
from statehouse.contract.membership import encode_member
from statehouse.contract.topology import assignment_topic, members_topic
from statehouse.control.v1 import assignment_pb2
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.control_log import ControlLogReader
from statehouse.kafka.topics import CONTROL_TOPIC_CONFIG, TopicSpec, ensure_topics
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import produce, read_all
from tests.support.members import FakeMember
from tests.support.polling import poll_until
from tests.support.published import PublishedEpochs
from tests.support.settings import ownership

DEADLINE_S = 30.0
SETTINGS = ownership(
    heartbeat_interval_ms=200, session_timeout_ms=3_000, initial_rebalance_delay_ms=600, num_standby_replicas=1
)


def create_topics(bootstrap: str, application: str) -> None:
    names = [members_topic(application), assignment_topic(application)]
    ensure_topics(clients.admin(bootstrap, "test"), [TopicSpec(name, 1, CONTROL_TOPIC_CONFIG) for name in names])


@pytest.fixture
def application(kafka: EmbeddedKafka, unique_name: Callable[[str], str]) -> str:
    name = unique_name("app")
    create_topics(kafka.bootstrap, name)
    return name


def stores(partitions: int = 4) -> list[StoreDeclaration]:
    return [StoreDeclaration("scores", "leaderboard", partitions, "app-scores-changelog")]


@contextmanager
def running(
    bootstrap: str, application: str, partitions: int = 4, settings: OwnershipSettings = SETTINGS, **callbacks: Any
) -> Iterator[OwnershipController]:
    with running_beside(bootstrap, application, partitions, settings, **callbacks) as controller:
        yield controller
    assert not runs(application)


@contextmanager
def running_beside(
    bootstrap: str, application: str, partitions: int = 4, settings: OwnershipSettings = SETTINGS, **callbacks: Any
) -> Iterator[OwnershipController]:
    controller = OwnershipController(
        bootstrap, application, stores(partitions), settings, ControllerCallbacks(**callbacks)
    )
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


@contextmanager
def standing_by(bootstrap: str, application: str, **callbacks: Any) -> Iterator[OwnershipController]:
    controller = OwnershipController(bootstrap, application, None, None, ControllerCallbacks(**callbacks))
    controller.start()
    try:
        yield controller
    finally:
        controller.stop()


class Watched:
    """What a controller has told of itself."""

    def __init__(self) -> None:
        self.states: list[ControllerState] = [ControllerState.CREATED]
        self.fatal: list[Exception] = []
        self.callbacks: dict[str, Any] = {"on_state": self._state, "on_fatal": self.fatal.append}

    def _state(self, state: ControllerState) -> None:
        if state is not self.states[-1]:
            self.states.append(next_state(self.states[-1], state))

    def wait_for(self, state: ControllerState, why: str = "") -> None:
        poll_until(lambda: self.states[-1] is state, DEADLINE_S, why or f"the controller to be {state}")


class Freeze:
    """Holds the threads of controllers up, as a process that is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._thawed = monkeypatch, threading.Event()

    def __call__(self, controller: OwnershipController) -> None:
        fleet, drain = controller._fleet, MembersReader.drain
        assert fleet is not None

        def held(feed: MembersReader, core: OwnershipCore, wait_s: float) -> None:
            if feed is fleet.members:
                self._thawed.wait(DEADLINE_S)
            drain(feed, core, wait_s)

        self._monkeypatch.setattr(MembersReader, "drain", held)

    def thaw(self) -> None:
        self._thawed.set()


@pytest.fixture
def freeze(monkeypatch: pytest.MonkeyPatch) -> Iterator[Freeze]:
    held = Freeze(monkeypatch)
    yield held
    held.thaw()


def runs(application: str) -> bool:
    """Whether a controller of the application runs in this process."""
    return any(thread.name == f"ownership-{application}" for thread in threading.enumerate())


class Pulse:
    """Beats for members in the background, each doing what was last published."""

    def __init__(self, bootstrap: str, application: str) -> None:
        self._epochs = PublishedEpochs(bootstrap, application)
        self.members: list[FakeMember] = []
        self._topic = members_topic(application)
        self._producer = Producer({"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200})
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.wait(SETTINGS.heartbeat_interval_s):
            with self._lock:
                for member in self.members:
                    member.follow(self.assignment)
                    key, value = encode_member(member.beat())
                    self._producer.produce(self._topic, key=key, value=value, partition=0)
            self._producer.poll(0)

    def add(self, *members: FakeMember) -> None:
        with self._lock:
            self.members.extend(members)

    def restart(self, member: FakeMember) -> None:
        """Let a member be back as another process, with all its state open, and wait until it was heard of."""
        with self._lock:
            member.restart("RUNNING")
        poll_until(lambda: member.beats > 1, DEADLINE_S, "its first heartbeats")

    def silence(self, member: FakeMember) -> None:
        with self._lock:
            self.members.remove(member)

    def leave(self, member: FakeMember) -> None:
        with self._lock:
            self.members.remove(member)
            self._producer.produce(self._topic, key=member.name.encode(), value=None, partition=0)
        self._producer.flush(DEADLINE_S)

    def wait_beats(self, session_timeouts: float) -> None:
        """Wait until the members have gone on for so long."""
        beats = session_timeouts * SETTINGS.session_timeout_s / SETTINGS.heartbeat_interval_s
        until = self.members[0].beats + beats
        poll_until(lambda: self.members[0].beats > until, DEADLINE_S, f"{beats:g} more heartbeats")

    @property
    def assignment(self) -> Assignment:
        """What is in force."""
        return self._epochs.assignment

    def __enter__(self) -> Self:
        self._epochs.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._epochs.__exit__(*details)
        self._stop.set()
        self._thread.join(DEADLINE_S)
        self._producer.flush(DEADLINE_S)
        self._producer.close()


def published(bootstrap: str, application: str) -> list[Assignment]:
    """Every epoch a reader that was there all the time would have seen."""
    reader = AssignmentReader()
    records = read_all(bootstrap, assignment_topic(application))
    return [snapshot for key, value in records if (snapshot := reader.feed(key, value)) is not None]


def wait_spread(pulse: Pulse, *members: FakeMember) -> None:
    """Wait until these members and nobody else hold everything, balanced: a controller wants nothing more then."""
    names = {member.name for member in members}

    def is_spread() -> bool:
        tasks = pulse.assignment.tasks.values()
        actives = Counter(holders.active for holders in tasks)
        copies = Counter(node for holders in tasks for node in holders.replicas)
        return (
            actives.keys() == copies.keys() == names
            and all(max(held.values()) - min(held.values()) <= 1 for held in (actives, copies))
            and all(len(holders.standbys) == 1 and not holders.warm_ups for holders in tasks)
        )

    poll_until(is_spread, DEADLINE_S, "a spread assignment")


def test_a_fleet_is_assigned_and_a_lost_member_replaced(kafka: EmbeddedKafka, application: str) -> None:
    members = [FakeMember(f"n{number}") for number in range(3)]
    rebalances: list[int] = []
    with (
        running(kafka.bootstrap, application, on_rebalance=lambda: rebalances.append(1)),
        Pulse(kafka.bootstrap, application) as pulse,
    ):
        poll_until(lambda: pulse.assignment.stores, DEADLINE_S, "the stores, before any node is there")
        pulse.add(*members)
        wait_spread(pulse, *members)
        pulse.silence(members[0])
        wait_spread(pulse, *members[1:])
        pulse.add(members[0])
        wait_spread(pulse, *members)
        pulse.leave(members[1])
        wait_spread(pulse, members[0], members[2])
    epochs = published(kafka.bootstrap, application)
    assert [snapshot.epoch for snapshot in epochs] == list(range(1, len(epochs) + 1))
    assert len(rebalances) == sum(old.tasks != new.tasks for old, new in pairwise([Assignment(), *epochs]))
    reasons = " | ".join(snapshot.reason for snapshot in epochs)
    assert "n0 was not heard of" in reasons
    assert "n0 joined" in reasons
    assert "n1 left" in reasons


@pytest.mark.feature("standbys-many-set")
def test_a_fleet_too_small_for_its_standbys_is_warned_of_until_it_has_them(
    kafka: EmbeddedKafka, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [FakeMember(f"n{number}") for number in range(2)]
    with running(kafka.bootstrap, application), Pulse(kafka.bootstrap, application) as pulse:
        pulse.add(members[0])
        actives = {members[0].name}
        poll_until(lambda: {each.active for each in pulse.assignment.tasks.values()} == actives, DEADLINE_S, "actives")
        pulse.add(members[1])
        wait_spread(pulse, *members)
    told = capsys.readouterr().out
    few, enough = "tasks with fewer copies than asked for: add nodes", "all tasks have the copies asked for"
    assert -1 < told.find(few) < told.find(enough)


@pytest.mark.feature("controller-goes-after")
def test_neither_a_restart_nor_idle_time_bumps_the_epoch(kafka: EmbeddedKafka, application: str) -> None:
    members = [FakeMember(f"n{number}") for number in range(3)]
    with running(kafka.bootstrap, application) as first, Pulse(kafka.bootstrap, application) as pulse:
        pulse.add(*members)
        wait_spread(pulse, *members)
        before = pulse.assignment
        first.stop()
        with running(kafka.bootstrap, application):
            pulse.wait_beats(1.2)
            assert pulse.assignment.epoch == before.epoch
            pulse.add(FakeMember("late"))
            poll_until(lambda: pulse.assignment.tasks_of("late"), DEADLINE_S, "the second controller to plan")
    follows = published(kafka.bootstrap, application)[before.epoch]
    assert (follows.epoch, follows.reason) == (before.epoch + 1, "late joined"), "and it published nothing before"


@pytest.mark.feature("newer-controller-fences")
@pytest.mark.feature("driver-fenced-goes")
def test_a_newer_controller_fences_the_older_which_stands_by(kafka: EmbeddedKafka, application: str) -> None:
    members = [FakeMember(f"n{number}") for number in range(3)]
    first, second = Watched(), Watched()
    with Pulse(kafka.bootstrap, application) as pulse, running(kafka.bootstrap, application, **first.callbacks):
        pulse.add(*members[:2])
        wait_spread(pulse, *members[:2])
        with running_beside(kafka.bootstrap, application, **second.callbacks):
            first.wait_for(ControllerState.STANDBY)
            pulse.add(members[2])
            wait_spread(pulse, *members)
            last = pulse.assignment
            assert second.states[-1] is ControllerState.RUNNING
            epochs = published(kafka.bootstrap, application)
        first.wait_for(ControllerState.RUNNING, "it has stood by, and the newer one has stopped")
        pulse.leave(members[0])
        wait_spread(pulse, *members[1:])
    assert first.fatal == second.fatal == []
    assert first.states[-1] is ControllerState.NOT_RUNNING
    assert epochs[-1].epoch >= last.epoch
    assert [snapshot.epoch for snapshot in epochs] == sorted({snapshot.epoch for snapshot in epochs})
    controllers = [snapshot.controller for snapshot in epochs]
    assert controllers == sorted(controllers, key=lambda name: name == last.controller), "no older one after a newer"
    assert len(set(controllers)) == 2


@pytest.mark.feature("standby-controller-without")
@pytest.mark.feature("driver-fenced-goes")
def test_a_standby_controller_takes_over_and_gives_back(kafka: EmbeddedKafka, application: str, freeze: Freeze) -> None:
    """The acting one falls silent and a member is lost; its successor has the same stores and settings."""
    members = [FakeMember(f"n{number}") for number in range(3)]
    driver, standby = Watched(), Watched()
    with Pulse(kafka.bootstrap, application) as pulse:
        acting = OwnershipController(
            kafka.bootstrap, application, stores(), SETTINGS, ControllerCallbacks(**driver.callbacks)
        )
        acting.start()
        with standing_by(kafka.bootstrap, application, **standby.callbacks):
            pulse.add(*members)
            wait_spread(pulse, *members)
            standby.wait_for(ControllerState.STANDBY)
            before = pulse.assignment
            freeze(acting)
            silent_at = time.monotonic()
            pulse.silence(members[0])
            standby.wait_for(ControllerState.RUNNING)
            assert time.monotonic() - silent_at >= SETTINGS.session_timeout_s - SETTINGS.heartbeat_interval_s
            wait_spread(pulse, *members[1:])
            assert dict(pulse.assignment.stores) == dict(before.stores)
            assert pulse.assignment.sub_topologies == before.sub_topologies
            freeze.thaw()
            driver.wait_for(ControllerState.STANDBY, "it finds that another one has taken over")
            pulse.add(members[0])
            wait_spread(pulse, *members)
            moved = pulse.assignment
            with running_beside(kafka.bootstrap, application):
                standby.wait_for(ControllerState.STANDBY, "a processor that starts takes over again")
                pulse.wait_beats(1.2)
                assert pulse.assignment.epoch == moved.epoch, "and moves nothing"
        acting.stop()
    assert driver.fatal == standby.fatal == []


@pytest.mark.feature("two-standby-controllers")
@pytest.mark.long
def test_two_standby_controllers_leave_each_other_alone(kafka: EmbeddedKafka, application: str) -> None:
    one, other = Watched(), Watched()
    with (
        Pulse(kafka.bootstrap, application) as pulse,
        running_beside(kafka.bootstrap, application) as driver,
        standing_by(kafka.bootstrap, application, **one.callbacks),
        standing_by(kafka.bootstrap, application, **other.callbacks),
    ):
        member = FakeMember("n0")
        pulse.add(member)
        wait_until_all_have_an_active(pulse)
        one.wait_for(ControllerState.STANDBY)
        other.wait_for(ControllerState.STANDBY)
        driver.stop()
        running_state = ControllerState.RUNNING
        poll_until(lambda: running_state in {one.states[-1], other.states[-1]}, DEADLINE_S, "one of them to take over")
        pulse.wait_beats(2.0)
        assert sorted((one.states[-1], other.states[-1])) == [ControllerState.RUNNING, ControllerState.STANDBY]
        assert one.states.count(running_state) + other.states.count(running_state) <= 2


@pytest.mark.feature("nothing-taken-over")
def test_nobody_takes_over_what_another_version_wrote(
    kafka: EmbeddedKafka, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A standby controller that can't read a store whole would publish it without what it can't read."""
    with running(kafka.bootstrap, application), Pulse(kafka.bootstrap, application) as pulse:
        poll_until(lambda: pulse.assignment.stores, DEADLINE_S, "the stores")
    newer = dict(read_all(kafka.bootstrap, assignment_topic(application)))
    unknown_field = b"\xfa\x3f\x01!"
    store = assignment_pb2.AssignmentRecord.FromString(newer[b"store/scores"] or b"")
    store.store.MergeFromString(unknown_field)
    produce(kafka.bootstrap, assignment_topic(application), [(b"store/scores", store.SerializeToString())])
    watched = Watched()
    with standing_by(kafka.bootstrap, application, **watched.callbacks):
        told: list[str] = []
        poll_until(
            lambda: told.append(capsys.readouterr().out) or "not taken over" in "".join(told), DEADLINE_S, "its refusal"
        )
    assert "store/scores" in "".join(told)
    assert ControllerState.RUNNING not in watched.states


def test_a_wrong_partition_count_fences_nobody(kafka: EmbeddedKafka, application: str) -> None:
    fatal: list[Exception] = []
    with running(kafka.bootstrap, application), Pulse(kafka.bootstrap, application) as pulse:
        poll_until(lambda: pulse.assignment.stores, DEADLINE_S, "the first controller's stores")
        second = OwnershipController(
            kafka.bootstrap, application, stores(partitions=6), SETTINGS, ControllerCallbacks(on_fatal=fatal.append)
        )
        second.start()
        poll_until(lambda: fatal, DEADLINE_S, "the second controller to refuse")
        assert isinstance(fatal[0], ConfigurationError)
        assert "declare partitions=4" in str(fatal[0])
        pulse.add(FakeMember("n0"))
        wait_until_all_have_an_active(pulse)


@pytest.mark.feature("driver-fenced-goes")
def test_a_processor_without_a_controller_needs_its_stores_published(kafka: EmbeddedKafka, application: str) -> None:
    def check(partitions: int = 4, **changes: Any) -> None:
        declared = [replace(store, **changes) for store in stores(partitions)]
        check_published(kafka.bootstrap, application, declared, DEADLINE_S)

    with pytest.raises(ConfigurationError, match="store scores is declared otherwise than published: start it once"):
        check()
    with running(kafka.bootstrap, application), Pulse(kafka.bootstrap, application) as pulse:
        poll_until(lambda: pulse.assignment.stores, DEADLINE_S, "the stores")
    check()
    with pytest.raises(ConfigurationError, match="declare partitions=4"):
        check(partitions=6)
    with pytest.raises(ConfigurationError, match="store scores is declared otherwise"):
        check(value_serde="string")
    with pytest.raises(ConfigurationError, match="can't be read"):
        check_published(kafka.bootstrap, "nobody", stores(), 1.0)


def test_an_epoch_whose_publication_was_uncertain_is_built_upon(
    kafka: EmbeddedKafka, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [FakeMember(f"n{number}") for number in range(2)]
    failures = 0
    publish = AssignmentPublisher.publish

    def publish_and_fail(self: AssignmentPublisher, records: Sequence[tuple[bytes, bytes | None]]) -> None:
        nonlocal failures
        publish(self, records)
        if failures < 2:
            failures += 1
            raise PublishError("the answer was lost")

    monkeypatch.setattr(AssignmentPublisher, "publish", publish_and_fail)
    with (
        running(kafka.bootstrap, application),
        Pulse(kafka.bootstrap, application) as pulse,
    ):
        pulse.add(*members)
        wait_spread(pulse, *members)
        in_force = pulse.assignment
    assert failures == 2
    epochs = published(kafka.bootstrap, application)
    manifests = [key for key, _ in read_all(kafka.bootstrap, assignment_topic(application)) if key == b"epoch"]
    assert len(manifests) == len(epochs), "no epoch twice"
    assert epochs[-1].tasks == in_force.tasks


def test_thousands_of_tasks_fit_the_brokers_message_limit(kafka: EmbeddedKafka, application: str) -> None:
    members = [FakeMember(f"node-with-a-long-name-{number}") for number in range(2)]
    # Their heartbeats wait while this process takes in an assignment; nobody shall be lost for it.
    settings = ownership(heartbeat_interval_ms=200, initial_rebalance_delay_ms=600, session_timeout_ms=45_000)
    with (
        running(kafka.bootstrap, application, 10_000, settings),
        Pulse(kafka.bootstrap, application) as pulse,
    ):
        pulse.add(*members)
        wait_until_all_have_an_active(pulse, 2 * DEADLINE_S)
        assert len(pulse.assignment.tasks) == 10_000


def wait_until_all_have_an_active(pulse: Pulse, deadline_s: float = DEADLINE_S) -> None:
    def have_active() -> bool:
        tasks = pulse.assignment.tasks.values()
        return bool(tasks) and all(holders.active is not None for holders in tasks)

    poll_until(have_active, deadline_s, "an active for every task")


@pytest.mark.feature("unknown-fields-newer")
def test_unreadable_records_are_skipped_and_counted(kafka: EmbeddedKafka, application: str) -> None:
    produce(kafka.bootstrap, members_topic(application), [(b"n9", b"\xff\xff\xff"), (b"n8", b"\x0a\x02n7")])
    produce(kafka.bootstrap, assignment_topic(application), [(b"store/x", b"\xff\xff\xff"), (b"epoch", b"\xff")])
    members = [FakeMember(f"n{number}") for number in range(2)]
    metrics = ProcessorMetrics()
    with (
        running(kafka.bootstrap, application, on_unreadable=metrics.controller.unreadable.note),
        Pulse(kafka.bootstrap, application) as pulse,
    ):
        pulse.add(*members)
        wait_spread(pulse, *members)
    name = "statehouse_processor_unreadable_control_records_total"
    assert metrics.registry.get_sample_value(name, {"topic": "members"}) == 2
    assert (metrics.registry.get_sample_value(name, {"topic": "assignment"}) or 0) >= 2, "it is read more than once"


@pytest.mark.feature("broker-down-reads")
@pytest.mark.long
def test_a_broker_restart_moves_nothing(unique_name: Callable[[str], str], tmp_path: Path) -> None:
    application = unique_name("app")
    members = [FakeMember(f"n{number}") for number in range(3)]
    fatal: list[Exception] = []
    with EmbeddedKafka(tmp_path / "broker") as broker:
        create_topics(broker.bootstrap, application)
        with (
            running(broker.bootstrap, application, on_fatal=fatal.append),
            Pulse(broker.bootstrap, application) as pulse,
        ):
            pulse.add(*members)
            wait_spread(pulse, *members)
            before = pulse.assignment
            broker.stop()
            pulse.wait_beats(2.0)
            broker.start()
            pulse.wait_beats(2.0)
            assert pulse.assignment.epoch == before.epoch
            pulse.add(FakeMember("late"))
            poll_until(lambda: pulse.assignment.tasks_of("late"), DEADLINE_S, "publishing to work again")
            assert fatal == []


@pytest.mark.parametrize("moment", ["while it starts", "while it runs"])
def test_a_reader_that_broke_stops_the_controller(
    kafka: EmbeddedKafka, application: str, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("a defect")

    fatal: list[Exception] = []
    controller = OwnershipController(
        kafka.bootstrap, application, stores(), SETTINGS, ControllerCallbacks(on_fatal=fatal.append)
    )
    if moment == "while it starts":
        monkeypatch.setattr(ControlLogReader, "_ask_for_end", breaks)
    controller.start()
    if moment == "while it runs":
        poll_until(lambda: published(kafka.bootstrap, application), DEADLINE_S, "the stores")
        monkeypatch.setattr(ControlLogReader, "_ask_for_end", breaks)
    poll_until(lambda: not runs(application), DEADLINE_S, "the controller to stop")
    assert [str(error) for error in fatal] == ["a defect"]


def test_the_record_of_a_member_that_is_long_gone_is_deleted(
    kafka: EmbeddedKafka, application: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "FORGET_AFTER_SESSIONS", 1)
    topic = members_topic(application)
    produce(kafka.bootstrap, topic, [encode_member(FakeMember("killed").beat())])
    with running(kafka.bootstrap, application), PublishedEpochs(kafka.bootstrap, application) as epochs:
        poll_until(lambda: (b"killed", None) in read_all(kafka.bootstrap, topic), DEADLINE_S, "its tombstone")
        produce(kafka.bootstrap, topic, [encode_member(FakeMember("killed").beat())])
        poll_until(lambda: epochs.assignment.tasks_of("killed"), DEADLINE_S, "it to be a member again")
    assert [value is None for _key, value in read_all(kafka.bootstrap, topic)] == [False, True, False]


@pytest.mark.feature("member-keeps-restarting")
def test_a_member_that_keeps_restarting_is_held_back_for_a_while(
    kafka: EmbeddedKafka, application: str, capsys: pytest.CaptureFixture[str]
) -> None:
    members = [FakeMember(f"n{number}") for number in range(3)]
    settings = replace(SETTINGS, flap_limit=1, flap_window_s=30.0)
    with (
        running(kafka.bootstrap, application, settings=settings),
        Pulse(kafka.bootstrap, application) as pulse,
    ):
        pulse.add(*members)
        wait_spread(pulse, *members)
        pulse.restart(members[0])
        pulse.restart(members[0])
        wait_spread(pulse, *members[1:])
        wait_spread(pulse, *members)
    reasons = [snapshot.reason for snapshot in published(kafka.bootstrap, application)]
    held = "n0 is held back: 2 restarts or lost sessions within 30 s, until it has been steady for 3 s"
    assert any(held in reason for reason in reasons)
    assert any("n0 is no longer held back" in reason for reason in reasons)
    told = capsys.readouterr().out
    assert "a node's sessions keep ending" in told
    assert "node is no longer held back" in told
