"""Wall clocks of a real node, router and processor are set while they run, and before they start."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from statehouse.assignment import TaskAssignment
from statehouse.client import Client, Freshness
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet
from tests.support.polling import poll_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

_LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)
_STEPS_S = (1, -1, 600, -600, 172_800, -172_800)
BUSY_MS = 60_000
"""What a busy machine may add to an age; a wrong one is off by a step."""
_PROCESSOR = """
import select, sys, time
time.sleep = lambda seconds: select.select([], [], [], seconds)  # the library's way to set clocks breaks the real one
from processor.commits import CommitsPublisher, StoreChangelog
bootstrap, application_id, store, topic = sys.argv[1:]
commits = CommitsPublisher(bootstrap, application_id, store, [StoreChangelog(store, topic, 1)])
commits.start()
commits.publish("query", 0, {("events", 0): 1})
while True:
    time.sleep(0.25)
    commits.repeat(0.5)
"""


class Clock:
    """The wall clock of some processes, and of theirs."""

    def __init__(self, directory: Path, name: str) -> None:
        self._file = directory / f"{name}.clock"
        self.set(0)

    def set(self, ahead_s: int) -> None:
        beside = self._file.with_suffix(".new")
        beside.write_text(f"{ahead_s:+d}\n")
        beside.replace(self._file)

    @property
    def prefix(self) -> Sequence[str]:
        return (
            "env",
            f"LD_PRELOAD={_LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={self._file}",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        )


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    if _LIBRARY is None:
        pytest.skip("needs libfaketime (Debian: apt-get install faketime)")
    with Fleet(kafka.bootstrap, unique_name("clocks"), tmp_path, partitions=1, committed=True) as fleet:
        yield fleet


def processor(fleet: Fleet, clock: Clock) -> subprocess.Popen[bytes]:
    arguments = [fleet.bootstrap, fleet.application_id, STORE, fleet.changelog]
    return subprocess.Popen([*clock.prefix, sys.executable, "-c", _PROCESSOR, *arguments], env={**os.environ})


def look_up_for(client: Client, seconds: float) -> list[int]:
    """Look up within a bound on the processor's age, again and again; return the ages."""
    ages, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        answer = client.get(STORE, "k", freshness=Freshness(max_processor_age_ms=BUSY_MS, max_staleness_ms=BUSY_MS))
        assert answer.found
        assert answer.processor_age_ms is not None
        ages.append(answer.processor_age_ms)
        assert not client.get(STORE, "absent").found
    return ages


def age_ms(client: Client) -> int | None:
    """Return the processor's age as an answer tells it; None if there is no answer, or it tells none."""
    with contextlib.suppress(LookupFailure):
        return client.get(STORE, "k").processor_age_ms
    return None


def test_no_step_fails_a_lookup_or_shows_in_an_age(fleet: Fleet, tmp_path: Path) -> None:
    clocks = {name: Clock(tmp_path, name) for name in ("driver", "node", "router")}
    driver = processor(fleet, clocks["driver"])
    try:
        fleet.put({"k": "v"})
        node = fleet.node("n1", prefix=clocks["node"].prefix)
        fleet.assign(TaskAssignment("n1"))
        router = fleet.router(prefix=clocks["router"].prefix)
        with Client(f"127.0.0.1:{router.port}", timeout=60.0) as client:
            poll_until(lambda: (age := age_ms(client)) is not None and age < BUSY_MS, 120, "reports as they come")
            for name, clock in clocks.items():
                for step_s in _STEPS_S:
                    clock.set(step_s)
                    ages = look_up_for(client, 3.0)
                    assert max(ages) < BUSY_MS, (name, step_s)
                    (query,) = client.fleet().queries
                    assert query.record_age_ms < BUSY_MS, (name, step_s)
                    assert query.batch_age_ms is not None
                    assert query.batch_age_ms < 300_000, (name, step_s)
                clock.set(0)
            assert node.node().state == "RUNNING"
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.parametrize("ahead_s", [172_800, -172_800])
def test_a_node_and_a_router_start_by_a_clock_that_is_days_wrong(fleet: Fleet, tmp_path: Path, ahead_s: int) -> None:
    driver, wrong = processor(fleet, Clock(tmp_path, "right")), Clock(tmp_path, "wrong")
    try:
        fleet.put({"k": "v"})
        wrong.set(ahead_s)
        fleet.node("n1", prefix=wrong.prefix)
        fleet.assign(TaskAssignment("n1"))
        router = fleet.router()
        with Client(f"127.0.0.1:{router.port}", timeout=60.0) as client:
            poll_until(lambda: (age := age_ms(client)) is not None and age < BUSY_MS, 120, "a right age")
            look_up_for(client, 2.0)
    finally:
        driver.kill()
        driver.wait()
