"""The leaderboard goes from top three to top five, and from 4 partitions to 16, under readers, writes and kills.

All by the commands that people type. What is planted, comes between the two versions; `compare` has to find exactly it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest

from examples.leaderboard import sample, topology
from statehouse.cli.exits import ExitCode
from statehouse.client import Answer, AsyncClient, Client, Lookup
from statehouse.contract.version_names import FIRST
from statehouse.errors import LookupFailure
from statehouse.local.cluster import LocalCluster, cluster_of
from tests.support.kafka import produce
from tests.support.polling import poll_until
from tests.support.statehouse import ANY_PORTS, Ran, statehouse

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

PRODUCTS: Final = range(100, 160)
PLAYERS: Final = range(1, 5)
PER_SECOND: Final = 300
KEYS: Final = [str(product) for product in PRODUCTS]


@dataclass
class Readers:
    """Read boards all the time, in a thread, and watch one that is written to."""

    target: str
    failed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=dict)
    watched: list[tuple[str, bool, Any]] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, version: str, more: int = 200) -> None:
        least = self.reads.get(version, 0) + more
        poll_until(lambda: self.reads.get(version, 0) >= least, 60, f"answers of {version}")

    async def _run(self) -> None:
        async with AsyncClient(self.target) as client:
            watch = asyncio.create_task(self._watch(client))
            pending: set[asyncio.Task[None]] = set()
            pace = asyncio.get_running_loop().time()
            for number in itertools.count():
                if self._is_over.is_set():
                    break
                pace += 1 / PER_SECOND
                await asyncio.sleep(max(0.0, pace - asyncio.get_running_loop().time()))
                task = asyncio.create_task(self._read(client, number))
                pending.add(task)
                task.add_done_callback(pending.discard)
            if pending:
                await asyncio.wait(pending)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _read(self, client: AsyncClient, number: int) -> None:
        try:
            if number % 10:
                answers = [await client.get(topology.STORE, KEYS[number % len(KEYS)], timeout=20.0)]
            else:
                outcomes = await client.batch_get([Lookup(topology.STORE, key) for key in KEYS], timeout=20.0)
                self.failed += [str(each) for each in outcomes if isinstance(each, LookupFailure)]
                answers = [each for each in outcomes if isinstance(each, Answer)]
        except LookupFailure as failure:
            self.failed.append(str(failure))
            return
        versions = {answer.version for answer in answers}
        if len(versions) != 1:
            self.mixed.append(f"of {sorted(versions)}")
        for each in versions:
            self.reads[each] = self.reads.get(each, 0) + 1

    async def _watch(self, client: AsyncClient) -> None:
        watch = client.watch(topology.STORE, KEYS[0])
        async for update in watch:
            self.watched += [(update.replica.version, update.current, change.value) for change in update.changes]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    try:
        yield tmp_path
    finally:
        statehouse(tmp_path, "down", timeout_s=120.0)


def done(ran: Ran) -> Ran:
    assert ran.code == ExitCode.DONE, f"{ran.out}\n{ran.err}"
    return ran


def scores(cluster: LocalCluster, *records: tuple[int, int, int]) -> None:
    """Write scores: product, player, score."""
    produce(cluster.bootstrap, topology.SCORES, [sample.score_event(*each) for each in records])


def top_of(cluster: LocalCluster, key: str, version: str = "") -> list[int]:
    with Client(cluster.router.address) as client:
        value: Any = client.get(f"{topology.STORE}@{version}" if version else topology.STORE, key).value
    return [round(each["score"]) for each in value] if value else []


def test_the_leaderboard_changes_its_topology_and_its_partitions_under_readers(folder: Path) -> None:
    done(statehouse(folder, "up", "--nodes", "2", *ANY_PORTS, timeout_s=300.0))
    cluster = cluster_of(folder / ".statehouse")
    produce(cluster.bootstrap, topology.PRODUCTS, [sample.named_row(each, f"game {each}") for each in PRODUCTS])
    produce(cluster.bootstrap, topology.PLAYERS, [sample.named_row(each, f"player {each}") for each in range(1, 9)])
    scores(cluster, *((product, player, 100 * player) for product in PRODUCTS for player in range(1, 7)))
    poll_until(lambda: top_of(cluster, KEYS[-1]) == [600, 500, 400], 60, "the boards")
    with Readers(cluster.router.address) as readers:
        readers.wait_for(FIRST)
        deployed = statehouse(
            folder, "deploy", "v2", "--app", "examples.leaderboard.top_five", "--partitions", "16", timeout_s=300.0
        )
        done(deployed)
        assert "empty checkpoint" in deployed.err
        cluster = cluster_of(folder / ".statehouse")
        poll_until(lambda: top_of(cluster, KEYS[-1], "v2") == [600, 500, 400, 300, 200], 120, "the boards of five")
        assert set(readers.reads) == {FIRST}
        found = statehouse(folder, "compare", topology.STORE, "v2", "-o", "json", timeout_s=120.0)
        assert found.code == ExitCode.ERROR, found.err
        compared = json.loads(found.out)
        # Each board has two more places, but for those of the sample, whose games have four players.
        assert compared["differing"] == {"missing": 0, "extra": 0, "other": compared["keys"]}
        same = done(statehouse(folder, "compare", topology.STORE, "v2", "--against", "v2", timeout_s=120.0))
        assert " 0 differ" in same.out
        for turn, (words, version) in enumerate(
            ((["promote", "v2"], "v2"), (["rollback"], FIRST), (["promote", "v2"], "v2"))
        ):
            scores(cluster, (PRODUCTS[0], 1, 1_000 + turn))
            began = time.monotonic()
            poll_until(lambda words=words: statehouse(folder, *words).code == ExitCode.DONE, 90, words[0])
            took_s = time.monotonic() - began
            assert words[0] != "rollback" or took_s < 10.0  # with the command's own start
            readers.wait_for(version)
            parts = [cluster.nodes[0], *(each for each in cluster.deployed["v2"] if "node" in each.name)]
            parts[turn % len(parts)].kill()
            readers.wait_for(version)
            done(statehouse(folder, "restart", parts[turn % len(parts)].name, timeout_s=120.0))
            readers.wait_for(version)
        scores(cluster, (PRODUCTS[0], 7, 5_000))
        poll_until(lambda: top_of(cluster, KEYS[0])[:1] == [5_000], 30, "a score that comes at the end")
        poll_until(lambda: bool(readers.watched) and best(readers.watched[-1]) == 5_000, 30, "the watch's last event")
    assert readers.failed == []
    assert readers.mixed == []
    changes = [best(each) for each in readers.watched if not each[1]]
    assert len(changes) == len(set(changes)), f"no change comes twice: {readers.watched}"
    assert statehouse(folder, "retire", FIRST, "--yes").code == ExitCode.ERROR, "it is kept"
    done(statehouse(folder, "retire", FIRST, "--yes", "--force", timeout_s=120.0))
    assert top_of(cluster, KEYS[0])[:1] == [5_000]
    listed = json.loads(done(statehouse(folder, "versions", "-o", "json")).out)
    assert [(each["version"], each["state"], each["partitions"]) for each in listed] == [("v2", "serves", [16])]


def best(event: tuple[str, bool, Any]) -> int | None:
    """Return a board's best score."""
    return None if not event[2] else round(event[2][0]["score"])
