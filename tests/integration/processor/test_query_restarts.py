"""Queries that die are started again, and the process ends when that has no use."""

from __future__ import annotations

import importlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.application.topology import Topology
from processor.ownership.controller import OwnershipController
from processor.ownership.declarations import StoreDeclaration
from processor.ownership.declared_settings import ownership_settings
from processor.run.processor import Processor
from processor.run.reset import carry_out, plan_reset
from processor.run.supervision import QueryDied
from processor.settings import ProcessorSettings
from processor.states.lifecycle import ApplicationState, ControllerState, QueryState
from statehouse.contract.topology import changelog_topic, commits_topic
from statehouse.control.v1 import commits_pb2
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import commits, messages
from tests.support.constants import settings_of
from tests.support.kafka import create_topic, produce
from tests.support.plugins import install
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(240)

DEADLINE_S = 90.0


class Walks:
    """An application with one store, of the steps that walkers take, and a stone in their way at times."""

    def __init__(
        self, bootstrap: str, application: str, events: str, directory: Path, *, has_sibling: bool = False
    ) -> None:
        self.has_sibling = has_sibling
        self.bootstrap, self.events, self.application = bootstrap, events, application
        self.stone = directory / "stone"
        self.settings = settings_of(
            ProcessorSettings,
            bootstrap=bootstrap,
            checkpoint_dir=str(directory / "checkpoint"),
            max_query_restarts=1,
            query_restart_backoff_ms=100,
        )
        self.processor = self.new_processor()

    def new_processor(self) -> Processor:
        where = str(self.stone)

        def stumble(value: str) -> str:
            path = Path(where)
            if path.exists():
                if path.read_text() == "loose":
                    path.unlink()
                raise ValueError("stumbled over a stone")
            return value

        def build(app: Application) -> None:
            value = F.udf(stumble, "string", useArrow=False)(F.col("value").cast("string"))
            app.store("walks", app.stream(self.events).select("key", value.alias("value")), value_serde="string")
            if self.has_sibling:
                app.store("rests", app.stream(self.events).select("key", "value"), value_serde="string")

        return Processor(Topology(self.application, build), self.settings)

    def published(self, store: str = "walks") -> list[bytes]:
        """What a changelog holds, sorted."""
        return sorted(message.value() for message in messages(self.bootstrap, changelog_topic(self.application, store)))

    def last_words(self, store: str) -> commits_pb2.Commit:
        """The last record of a store in the commits topic."""
        return [each for each in commits(self.bootstrap, commits_topic(self.application)) if each.store == store][-1]

    def walk(self, steps: range) -> None:
        """Take steps and let the processor run until they are published."""
        self._take(steps)
        self._wait_for(steps.stop)

    def begin(self, steps: range) -> None:
        """Take steps, and then start: Spark would begin with a batch of nothing if it came before the first event."""
        self._take(steps)
        self.processor.start()
        self._wait_for(steps.stop)

    def _take(self, steps: range) -> None:
        produce(self.bootstrap, self.events, [(b"walker %d" % step, b"step %d" % step) for step in steps])

    def _wait_for(self, count: int) -> None:
        deadline = time.monotonic() + DEADLINE_S

        def is_done() -> bool:
            assert time.monotonic() < deadline, "the steps were not published"
            return len(self.published()) >= count

        self.processor.wait(is_done)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.processor.metrics.registry.get_sample_value(
            f"statehouse_processor_{name}", {"query": "walks", **labels}
        )


PLUGIN = """
EVENTS = []

class Recorder:
    def on_application_state(self, old, new): EVENTS.append(("application", old.value, new.value))
    def on_query_state(self, query, old, new): EVENTS.append((query, old.value, new.value))
    def on_controller_state(self, old, new): EVENTS.append(("controller", old.value, new.value))

class Raising:
    def on_query_state(self, query, old, new): raise RuntimeError("a listener's own fault")
"""


def states_of(who: str) -> list[str]:
    """Return the states that the installed listener saw, each with the one before."""
    seen = [each for each in importlib.import_module("processor_plugin").EVENTS if each[0] == who]
    assert all(before[2] == after[1] for before, after in itertools.pairwise(seen)), seen
    return [new for _, _, new in seen]


def steps(count: int) -> list[bytes]:
    return [b"step %d" % step for step in range(count)]


@pytest.mark.feature("driver-dies-loses")
@pytest.mark.feature("states-application-queries")
def test_a_query_that_dies_is_started_again_until_that_has_no_use_and_after_a_reset_all_is_done_anew(
    spark: SparkSession,
    kafka: EmbeddedKafka,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    application, events = unique_name("app"), unique_name("events")
    entry_points = {"recorder": "processor_plugin:Recorder", "raising": "processor_plugin:Raising"}
    install(tmp_path / "packages", "processor_plugin", "statehouse.processor_listeners", entry_points, PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    create_topic(kafka.bootstrap, events)
    walks = Walks(kafka.bootstrap, application, events, tmp_path)
    try:
        walks.begin(range(3))
        assert walks.metric("query_restarts_total") == 0
        walks.stone.write_text("loose")
        walks.walk(range(3, 6))
        assert walks.metric("query_restarts_total") == 1
        # Progress comes after the batch, on a thread of Spark's; the failed batch never has any.
        poll_until(lambda: walks.metric("input_rows_total") == 6, DEADLINE_S, "the progress of both batches")
        assert walks.metric("input_offsets_total", topic=events) == 6
        assert walks.metric("commit_lag_offsets", topic=events) == 0
        assert walks.metric("trigger_seconds_count") == 2
        walks.stone.write_text("fast")
        with pytest.raises(QueryDied, match=r"query walks ended \(restarts before: 1\): ValueError: stumbled"):
            walks.walk(range(6, 7))
    finally:
        walks.processor.stop()
    assert states_of("walks") == ["RUNNING", "RESTARTING", "RUNNING", "ERROR", "NOT_RUNNING"]
    assert states_of("controller")[:2] == ["STARTING", "RUNNING"]
    assert states_of("controller")[-1] == "NOT_RUNNING"
    ending = ("ERROR", "PENDING_SHUTDOWN", "NOT_RUNNING")
    assert states_of("application") == ["STARTING", "RUNNING", "RESTARTING", "RUNNING", *ending]
    said_of = walks.processor.metrics.registry.get_sample_value
    assert said_of("statehouse_processor_listener_failures_total", {"listener": "raising"}) == 5
    assert said_of("statehouse_processor_state", {"state": "NOT_RUNNING"}) == 1
    changed = {"query": "walks", "from": "RUNNING", "to": "RESTARTING"}
    assert said_of("statehouse_processor_query_state_changes_total", changed) == 1
    assert walks.published() == steps(6)
    said = list(commits(kafka.bootstrap, commits_topic(application)))
    assert [(each.batch_id, each.stopped) for each in said if not each.idle or each.stopped] == [
        (0, False),
        (1, False),
        (1, True),
    ]
    told = (
        said[-1].query,
        said[-1].input_backlog,
        said[-1].figures.backlog,
        said[-1].figures.dead_letters,
        said[-1].HasField("figures"),
    )
    assert told == ("walks", 1, 0, 0, True), "the step that was not taken came after the last batch"
    assert said[-1].failure.reason.startswith("ValueError at test_query_restarts.py:")
    assert said[-1].committed_at_ms > 0

    plan = plan_reset(kafka.bootstrap, application, walks.settings.checkpoint_dir, DEADLINE_S)
    carry_out(kafka.bootstrap, plan, DEADLINE_S)
    walks.stone.unlink()
    walks.processor = walks.new_processor()
    try:
        walks.processor.start()
        walks.walk(range(7, 8))
    finally:
        walks.processor.stop()
    assert walks.published() == steps(8), "in a new changelog"


@pytest.mark.feature("siblings-go-on")
@pytest.mark.feature("failures-are-seen")
def test_a_query_that_dies_says_why_and_its_sibling_goes_on(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events)
    walks = Walks(kafka.bootstrap, application, events, tmp_path, has_sibling=True)
    deadline = time.monotonic() + DEADLINE_S

    def until(is_done: Callable[[], bool], what: str) -> None:
        def done_in_time() -> bool:
            assert time.monotonic() < deadline, what
            return is_done()

        walks.processor.wait(done_in_time)

    try:
        walks.begin(range(2))
        walks.stone.write_text("fast")
        walks._take(range(2, 3))
        until(lambda: walks.last_words("walks").failure.given_up, "the failure")
        until(lambda: walks.published("rests") == steps(3), "the sibling's step")
        assert walks.processor.states.application is ApplicationState.RUNNING
        assert dict(walks.processor.states.queries) == {"walks": QueryState.ERROR, "rests": QueryState.RUNNING}
        assert walks.last_words("walks").busy
        assert walks.last_words("walks").source_ends[0].offset == 2, "it proves nothing of the record that it died of"
        until(lambda: walks.last_words("rests").idle, "the sibling's heartbeat")
        assert not walks.last_words("rests").HasField("failure")
    finally:
        walks.processor.stop()
    assert walks.last_words("walks").stopped
    assert walks.last_words("walks").failure.reason.startswith("ValueError at test_query_restarts.py:")
    assert not walks.last_words("rests").HasField("failure")


@pytest.mark.feature("driver-fenced-goes")
def test_a_driver_that_is_fenced_goes_on_with_its_batches_and_takes_over_again(
    spark: SparkSession, kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
):
    application, events = unique_name("app"), unique_name("events")
    create_topic(kafka.bootstrap, events)
    walks = Walks(kafka.bootstrap, application, events, tmp_path)
    states = walks.processor.states

    def wait_for(state: ControllerState) -> None:
        poll_until(lambda: states.controller is state, DEADLINE_S, f"the processor's controller to be {state}")

    declared = [StoreDeclaration("walks", "walks", 1, changelog_topic(application, "walks"))]
    newer = OwnershipController(kafka.bootstrap, application, declared, ownership_settings(walks.settings))
    try:
        walks.begin(range(1))
        wait_for(ControllerState.RUNNING)
        newer.start()
        wait_for(ControllerState.STANDBY)
        for step in (1, 2):
            walks.walk(range(step, step + 1))
        assert states.controller is ControllerState.STANDBY
        assert states.application is ApplicationState.RUNNING
        assert dict(states.queries) == {"walks": QueryState.RUNNING}
        newer.stop()
        wait_for(ControllerState.RUNNING)
        walks.walk(range(3, 4))
    finally:
        newer.stop()
        walks.processor.stop()
    assert walks.published() == steps(4)
    said = commits(kafka.bootstrap, commits_topic(application))
    assert [each.batch_id for each in said if not each.idle and not each.stopped] == [0, 1, 2, 3]
    assert walks.metric("query_restarts_total") == 0
