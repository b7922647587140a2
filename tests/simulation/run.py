"""One run of the simulation: a fleet comes up, faults happen, faults end, and everything must come to rest."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import structlog

import query_service.reads.admission
import query_service.replicas.replica
import query_service.states.ownership
import tests.simulation.controller
import tests.simulation.router
from query_service.stores import kept_moments
from statehouse.contract.membership import Member, decode_member
from statehouse.errors import LookupFailure
from statehouse.v1 import types_pb2
from tests.simulation.clients import Lookup
from tests.simulation.faults import Faults
from tests.simulation.fleet import Fleet
from tests.simulation.loop import VirtualLoop
from tests.simulation.recording import Recorder
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import World

_COMES_UP_S = 4.0
# From the end of the last fault: sessions time out, members are held back, tasks are restored one after the other.
_SETTLES_WITHIN_S = 150.0
_POLL_S = 0.5
_HEARTBEATS_KEPT = 256

Story = Callable[[World], Coroutine[Any, Any, None]]
"""What happens in a run."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run: the rule that was broken, if one was, and how much happened."""

    seed: int
    violation: str
    counts: Counter[str]
    simulated_s: float
    took_s: float
    trace: list[str] = field(default_factory=list)


def run_seed(
    seed: int, story: Story | None = None, *, is_traced: bool = False, recorded_to: Path | None = None
) -> Outcome:
    """Run a seed from beginning to end, or a `story` of one's own in its world.

    `recorded_to`: a file for what its nodes did and answered, written if no rule was broken.
    """
    started = time.perf_counter()
    loop = VirtualLoop()
    world = World(seed, loop, is_traced=is_traced)
    if recorded_to is not None:
        world.recorder = Recorder(world, recorded_to)
    with _simulated_clocks(world):
        try:
            loop.run_until_complete(_until_broken(world, (story or _story)(world)))
        finally:
            _cancel_all(loop)
            loop.close()
    took_s = time.perf_counter() - started
    return Outcome(seed, world.violation, world.counts, loop.now, took_s, world.trace or [])


async def _until_broken(world: World, story: Coroutine[Any, Any, None]) -> None:
    story_task = world.task(story)
    broken = asyncio.ensure_future(world.broken.wait())
    await asyncio.wait((story_task, broken), return_when=asyncio.FIRST_COMPLETED)


async def _story(world: World) -> None:
    settings = SimulationSettings.drawn(world.rng, world.seed)
    world.note("RUN", "seed {}: {}", world.seed, settings)
    fleet = Fleet(world, settings)
    fleet.start()
    await asyncio.sleep(_COMES_UP_S)
    faults = Faults(fleet)
    await faults.run(settings.faults_s)
    world.note("RUN", "faults end")
    faults.end()
    fleet.stop_writing()
    await settles(world, fleet)
    await stays_settled(world, fleet)
    fleet.clients.stop()
    await _all_is_found(world, fleet)
    world.recorder.write(fleet.kafka)
    world.note("RUN", "all is well")


async def settles(world: World, fleet: Fleet) -> None:
    """Every plan converges when faults stop."""
    began_at = settled_at = world.now
    epoch, what = 0, "it has not been looked at"
    # What everybody has come to is known to the controller, and acted upon, within two heartbeats and a linger.
    quiet_s = 2 * fleet.settings.heartbeat_interval_s + fleet.settings.ownership.linger_s + _POLL_S
    while world.now - settled_at < quiet_s:
        await asyncio.sleep(_POLL_S)
        what = fleet.unsettled()
        if what or fleet.checks.current.epoch != epoch:
            epoch, settled_at = fleet.checks.current.epoch, world.now
        if world.now - began_at > _SETTLES_WITHIN_S:
            break
    if what:
        world.break_rule("every plan converges when faults stop", f"{_SETTLES_WITHIN_S:g} s after: {what}")
    world.counts["seconds to settle"] += int(world.now - began_at)


async def stays_settled(world: World, fleet: Fleet) -> None:
    """Nothing more is published, and every lookup is answered."""
    ownership = fleet.settings.ownership
    epoch, failed = fleet.checks.current.epoch, world.counts["lookups failed"]
    # Copies may linger beyond what is asked for.
    await asyncio.sleep(ownership.session_timeout_s + ownership.linger_s + 2 * ownership.heartbeat_interval_s)
    if fleet.checks.current.epoch != epoch:
        world.break_rule("a quiet fleet is left alone", f"epoch {fleet.checks.current.epoch} after {epoch}")
    if world.counts["lookups failed"] != failed:
        world.break_rule("a quiet fleet answers every lookup", "see the trace")


async def _all_is_found(world: World, fleet: Fleet) -> None:
    """Each key has the value that was written last, whatever the bound."""
    bounds = (
        types_pb2.Freshness(),
        types_pb2.Freshness(active_only=True),
        types_pb2.Freshness(max_lag=0, max_staleness_ms=2_000),
    )
    for (store, _), log in fleet.kafka.changelogs.items():
        for key in log.keys[:2]:
            lookup = Lookup(store, key.decode(), world.rng.choice(bounds))
            response = await fleet.clients.look_up(world.rng.choice(fleet.routers), lookup)
            value = log.value_at(key, log.end)
            if isinstance(response, LookupFailure):
                world.break_rule("a quiet fleet answers every lookup", f"{lookup}: {response}")
            elif (response.value.raw if response.found else None) != value:
                world.break_rule("a quiet fleet knows what was written", f"{lookup}: not {value!r}")
    await fleet.processor.end_batch()
    fleet.moments.check_quiet_fleet()


@contextmanager
def _simulated_clocks(world: World) -> Iterator[None]:
    """Have the modules that read clocks read the simulation's, and keep their logs to themselves."""
    logging_before = structlog.get_config()
    with ExitStack() as patches:
        for module in (query_service.reads.admission, query_service.replicas.replica, kept_moments):
            patches.enter_context(patch.object(module, "time", world))
        # Everybody reads the same heartbeats: they are taken apart once.
        decode_once = lru_cache(_HEARTBEATS_KEPT)(decode_member)

        def decode(key: bytes | None, value: bytes, written_at_ms: int, now_ms: int) -> Member:
            at_ms = min(written_at_ms, now_ms)  # the same for all readers: there is one clock
            return decode_once(key, value, at_ms, at_ms)

        for module in (query_service.states.ownership, tests.simulation.controller, tests.simulation.router):
            patches.enter_context(patch.object(module, "decode_member", decode))
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        try:
            yield
        finally:
            structlog.configure(**logging_before)


def _cancel_all(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
