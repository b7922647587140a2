"""Wall clocks of real nodes, a router, a controller and a driver are set while they run, and before they start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from statehouse.client import Client, Freshness
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, THIS, Fleet, ServerProcess
from tests.support.polling import poll_until
from tests.support.published import PublishedEpochs
from tests.support.wall_clock import WallClock, built

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

STEPS_S: Final = (1, -1, 600, -600, 172_800, -172_800)
PARTITIONS: Final = 2
SESSION_TIMEOUT_MS: Final = 20_000
AGE_MS: Final = 20_000
"""What a busy machine may add to an age; one that a step has made wrong is further off, or is 0."""
LOOKS_S: Final = 1.5
BOUNDS: Final = Freshness(max_processor_age_ms=AGE_MS, max_staleness_ms=AGE_MS, max_lag=0)
PROCESSES: Final = ("driver", "controller", "a", "b", "router")


class Clocked(ExitStack):
    """A fleet in which each process has a wall clock of its own."""

    def __init__(self, fleet: Fleet, directory: Path) -> None:
        super().__init__()
        self.fleet, self._directory = fleet, directory
        library = built(directory)
        self.clocks: Mapping[str, WallClock] = {name: WallClock(library, name) for name in PROCESSES}
        self.nodes: dict[str, ServerProcess] = {}

    def start(self) -> Client:
        """Start all of it, and return a client once it answers within the bounds."""
        keys = [*self.fleet.keys_in(0, 2), *self.fleet.keys_in(1, 2)]
        self.fleet.put(dict.fromkeys(keys, "v"))
        for part in ("driver", "controller"):
            self._begin(part)
        for name in ("a", "b"):
            self.nodes[name] = self.fleet.node(name, prefix=self.clocks[name].prefix)
        router = self.fleet.router(prefix=self.clocks["router"].prefix)
        client = self.enter_context(Client(f"127.0.0.1:{router.port}", timeout=20.0))
        poll_until(lambda: all(ages(client, keys)), 90, "all keys within the bounds")
        for node in self.nodes.values():
            poll_until(partial(holds_all, node), 60, f"{node.name} to hold all tasks")
        return client

    def _begin(self, part: str) -> None:
        numbers = (str(PARTITIONS), str(SESSION_TIMEOUT_MS))
        words = (self.fleet.bootstrap, self.fleet.application_id, *numbers)
        log = self.enter_context((self._directory / f"{part}.log").open("wb"))
        command = [*self.clocks[part].prefix, sys.executable, "-m", "tests.support.clocked", part, *words]
        process = self.enter_context(subprocess.Popen(command, cwd=THIS.root, stdout=log, stderr=log))
        self.callback(process.kill)


@pytest.fixture
def clocked(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Clocked]:
    with (
        Fleet(
            kafka.bootstrap,
            unique_name("clocks"),
            tmp_path,
            partitions=PARTITIONS,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            committed=True,
        ) as fleet,
        Clocked(fleet, tmp_path) as clocked,
    ):
        yield clocked


def holds_all(node: ServerProcess) -> bool:
    """Whether the controller takes a node for alive: each task has an active and a standby."""
    return len(node.node().tasks) == PARTITIONS


def ages(client: Client, keys: list[str]) -> list[int | None]:
    """Return the processor's ages that the answers tell; None for a key that isn't answered within the bounds."""
    return [age(client, key) for key in keys]


def age(client: Client, key: str) -> int | None:
    try:
        answer = client.get(STORE, key, freshness=BOUNDS)
    except LookupFailure:
        return None
    assert answer.found
    return answer.processor_age_ms or 1


@contextmanager
def unmoved(clocked: Clocked) -> Iterator[None]:
    """Fail if the controller publishes anything meanwhile: no node was lost, and nothing is to be restored."""
    with PublishedEpochs(clocked.fleet.bootstrap, clocked.fleet.application_id) as published:
        poll_until(lambda: published.assignment.epoch > 0, 20, "the assignment in force")
        before = settled_epoch(published)
        yield
        assert published.assignment.epoch == before, published.assignment.reason


def settled_epoch(published: PublishedEpochs) -> int:
    """Return the epoch once no other has followed it for a while: the fleet has just started."""
    since, epoch = time.monotonic(), published.assignment.epoch

    def rests() -> bool:
        nonlocal since, epoch
        if published.assignment.epoch != epoch:
            since, epoch = time.monotonic(), published.assignment.epoch
        return time.monotonic() - since > 3.0

    poll_until(rests, 60, "the fleet to settle")
    return epoch


def look_up(client: Client, keys: list[str], seconds: float) -> None:
    """Look keys up within the bounds, again and again; each answer must be there, and its age one that can be true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for key in keys:
            answer = client.get(STORE, key, freshness=BOUNDS)
            assert answer.found
            assert answer.processor_age_ms is not None
        assert not client.get(STORE, f"not-{keys[0]}", freshness=BOUNDS).found
    fleet = client.fleet()
    assert fleet.controller is not None
    assert fleet.controller.record_age_ms < AGE_MS
    (query,) = fleet.queries
    assert query.record_age_ms < AGE_MS
    assert query.batch_age_ms is not None
    assert query.batch_age_ms < 2 * AGE_MS


def test_a_clock_that_is_set_is_what_a_process_reads_and_nothing_else(tmp_path: Path) -> None:
    clock = WallClock(built(tmp_path), "own")
    clock.set(172_800)
    code = "import time; print(time.time(), time.monotonic())"
    command = [*clock.prefix, sys.executable, "-c", code]
    wall_s, steady_s = map(float, subprocess.run(command, check=True, capture_output=True).stdout.split())
    assert abs(wall_s - time.time() - 172_800) < 60.0
    assert abs(steady_s - time.monotonic()) < 60.0


def test_no_step_fails_a_lookup_or_shows_in_an_age(clocked: Clocked) -> None:
    client = clocked.start()
    keys = [*clocked.fleet.keys_in(0, 2), *clocked.fleet.keys_in(1, 2)]
    with unmoved(clocked):
        for name, clock in clocked.clocks.items():
            for step_s in STEPS_S:
                clock.set(step_s)
                try:
                    look_up(client, keys, LOOKS_S)
                except Exception as failure:
                    failure.add_note(f"the clock of {name} was set to {step_s:+d} s")
                    raise
            clock.set(0)
    assert all(node.node().state == "RUNNING" for node in clocked.nodes.values())


@pytest.mark.parametrize("ahead_s", [172_800, -172_800])
@pytest.mark.parametrize("names", [("a", "router"), ("driver",), ("controller",)], ids=lambda names: names[0])
def test_who_starts_by_a_clock_that_is_days_wrong_starts(
    clocked: Clocked, names: tuple[str, ...], ahead_s: int
) -> None:
    for name in names:
        clocked.clocks[name].set(ahead_s)
    client = clocked.start()
    look_up(client, clocked.fleet.keys_in(0, 2), LOOKS_S)
