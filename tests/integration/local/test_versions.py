"""The leaderboard goes from top three to top five, and from 4 partitions to 16, under readers, writes and kills.

All by the commands that people type. At each step a node, a router, a driver and a controller are killed.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from examples.leaderboard import sample, topology
from statehouse.cli.exits import ExitCode
from statehouse.client import Client
from statehouse.contract.topology import assignment_topic, changelog_topic, control_topic_names
from statehouse.contract.version_names import FIRST, application_of
from statehouse.contract.versions import VERSIONS_KEY
from statehouse.errors import LookupFailure
from statehouse.kafka.control_read import read_to_ends
from statehouse.local.cluster import LocalCluster, cluster_of
from statehouse.local.cluster_parts import HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import produce, topics_of
from tests.support.polling import poll_until
from tests.support.proxy import PROXY
from tests.support.statehouse import ANY_PORTS, Ran, statehouse
from tests.support.version_readers import Readers

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.timeout(2400), pytest.mark.long]

PRODUCTS: Final = range(100, 160)
PLAYERS: Final = range(1, 5)
KEYS: Final = [str(product) for product in PRODUCTS]
NAME: Final = topology.application_id
SEED: Final = 44
SWITCHED_WITHIN_S: Final = 5.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    try:
        yield tmp_path
    finally:
        statehouse(tmp_path, "down", timeout_s=300.0)


def done(ran: Ran) -> Ran:
    assert ran.code == ExitCode.DONE, f"{ran.out}\n{ran.err}"
    return ran


def scores(cluster: LocalCluster, *records: tuple[int, int, int]) -> None:
    """Write scores: product, player, score."""
    produce(cluster.bootstrap, topology.SCORES, [sample.score_event(*each) for each in records])


@dataclass
class Faults:
    """Kills a part of each kind and starts it again, in an order and of versions that a seed gives."""

    folder: Path
    second: ServerProcess
    chosen: random.Random = field(default_factory=lambda: random.Random(SEED))
    killed: list[str] = field(default_factory=list)

    def strike(self, check: Callable[[], None]) -> None:
        """Strike each kind once; check while the part is gone, and when it is back."""
        names = {part.name for part in cluster_of(self.folder / ".statehouse").parts}
        kinds = [[each for each in names if each.startswith(kind)] for kind in ("node", "processor", "controller")]
        for kind in self.chosen.sample([*kinds, ["router", self.second.name]], len(kinds) + 1):
            name = self.chosen.choice(sorted(kind))
            self.killed.append(name)
            if name == self.second.name:
                self.second.kill()
                check()
                self.second.start()
            else:
                # As commands have left it: others have started parts meanwhile.
                cluster_of(self.folder / ".statehouse").part(name).kill()
                check()
                done(statehouse(self.folder, "restart", name, timeout_s=300.0))
            check()


def record_written_at(cluster: LocalCluster) -> float:
    """When the newest record of versions was written, seconds since 1970."""
    found = [0.0]

    def take(key: bytes | None, _value: bytes | None, timestamp_ms: int) -> None:
        if key == VERSIONS_KEY:
            found[0] = timestamp_ms / 1000

    read_to_ends(cluster.bootstrap, {assignment_topic(NAME): take}, "test", 30.0)
    return found[0]


def top_of(cluster: LocalCluster, key: str, version: str = "") -> list[int]:
    with Client(cluster.router.address) as client:
        value: Any = client.get(f"{topology.STORE}@{version}" if version else topology.STORE, key).value
    return [round(each["score"]) for each in value] if value else []


def test_the_leaderboard_changes_its_topology_and_its_partitions_under_readers(folder: Path) -> None:
    done(statehouse(folder, "up", "--nodes", "2", *ANY_PORTS, timeout_s=600.0))
    run_dir = folder / ".statehouse"
    cluster = cluster_of(run_dir)
    produce(cluster.bootstrap, topology.PRODUCTS, [sample.named_row(each, f"game {each}") for each in PRODUCTS])
    produce(cluster.bootstrap, topology.PLAYERS, [sample.named_row(each, f"player {each}") for each in range(1, 9)])
    scores(cluster, *((product, player, 100 * player) for product in PRODUCTS for player in range(1, 7)))
    poll_until(lambda: top_of(cluster, KEYS[-1]) == [600, 500, 400], 300, "the boards")
    timing = {"heartbeat_interval_ms": HEARTBEAT_INTERVAL_MS, "session_timeout_ms": SESSION_TIMEOUT_MS}
    with Servers(cluster.bootstrap, NAME, folder, **timing) as servers:
        second = servers.router("router-2", proxy=PROXY)
        routers = f"{cluster.router.address},{second.target}"
        faults = Faults(folder, second)
        poll_until(partial(is_ready, second), 60, "the second router")
        with Readers(routers, topology.STORE, KEYS) as readers:
            readers.wait_for(FIRST)
            deployed = statehouse(
                *(folder, "deploy", "v2", "--app", "examples.leaderboard.top_five"),
                *("--partitions", "16", "--router", routers),
                timeout_s=600.0,
            )
            done(deployed)
            assert "empty checkpoint" in deployed.err
            poll_until(lambda: top_of(cluster, KEYS[-1], "v2") == [600, 500, 400, 300, 200], 300, "the boards of five")
            faults.strike(partial(readers.wait_for, FIRST))
            assert set(readers.reads) == {FIRST}
            compare(folder)
            for turn, (words, version) in enumerate(
                ((["promote", "v2"], "v2"), (["rollback"], FIRST), (["promote", "v2"], "v2"))
            ):
                scores(cluster, (PRODUCTS[0], 1, 1_000 + turn))
                take_over(folder, readers, [*words, "--router", routers], version)
                faults.strike(partial(readers.wait_for, version))
            scores(cluster, (PRODUCTS[0], 7, 5_000))
            poll_until(lambda: bool(readers.watched) and best(readers.watched[-1]) == 5_000, 120, "the last event")
    assert readers.failed == []
    assert readers.mixed == []
    changes = [best(each) for each in readers.watched if not each[1]]
    assert len(changes) == len(set(changes)), f"no change comes twice: {readers.watched}"
    assert {1_000, 1_001, 1_002, 5_000} <= {best(each) for each in readers.watched}, "none is lost"
    retire_the_first(folder)
    done(statehouse(folder, "down", "--keep-data", timeout_s=300.0))
    done(statehouse(folder, "up", *ANY_PORTS, timeout_s=600.0))
    cluster = cluster_of(run_dir)
    assert top_of(cluster, KEYS[0])[:1] == [5_000], "a cluster that is started again has the version that serves"
    assert {part.name for part in cluster.parts if part.is_running} >= {"processor-v2", "node-v2-a", "node-v2-b"}
    assert not cluster.processor.is_running


def is_ready(router: ServerProcess) -> bool:
    try:
        return router.get(KEYS[0], store=topology.STORE).found
    except LookupFailure:
        return False


def compare(folder: Path) -> None:
    found = statehouse(folder, "compare", topology.STORE, "v2", "-o", "json", timeout_s=300.0)
    assert found.code == ExitCode.ERROR, found.err
    compared = json.loads(found.out)
    # Each board has two more places, but for those of the sample, whose games have four players.
    assert compared["differing"] == {"missing": 0, "extra": 0, "other": compared["keys"]}
    same = done(statehouse(folder, "compare", topology.STORE, "v2", "--against", "v2", timeout_s=300.0))
    assert " 0 differ" in same.out


def take_over(folder: Path, readers: Readers, words: list[str], version: str) -> None:
    """Have a version serve, by a command; all readers follow within seconds of its record."""
    if words[0] == "rollback":
        begin = time.monotonic()
        done(statehouse(folder, "rollback", "--help", timeout_s=120.0))
        started = time.monotonic()
        done(statehouse(folder, *words, timeout_s=120.0))
        took_s = time.monotonic() - started - (started - begin)
        log.info("rollback took %.2f s, and %.2f s to start", took_s, started - begin)
        assert took_s < SWITCHED_WITHIN_S
    else:  # whose processor may have begun again just before
        poll_until(lambda: statehouse(folder, *words, timeout_s=120.0).code == ExitCode.DONE, 300, words[0])
    readers.wait_for(version)
    switched_s = readers.began_at[version] - record_written_at(cluster_of(folder / ".statehouse"))
    log.info("%s: readers have %s %.2f s after the record", words[0], version, switched_s)
    assert switched_s < SWITCHED_WITHIN_S


def retire_the_first(folder: Path) -> None:
    """Delete the first version: all that is its own, and nothing of the other one."""
    run_dir = folder / ".statehouse"
    topics_before = topics_of(cluster_of(run_dir).bootstrap)
    assert statehouse(folder, "retire", FIRST, "--yes", timeout_s=120.0).code == ExitCode.ERROR, "it is kept"
    assert topics_of(cluster_of(run_dir).bootstrap) == topics_before
    done(statehouse(folder, "retire", FIRST, "--yes", "--force", timeout_s=300.0))
    cluster = cluster_of(run_dir)
    assert top_of(cluster, KEYS[0])[:1] == [5_000]
    listed = json.loads(done(statehouse(folder, "versions", "-o", "json", timeout_s=120.0)).out)
    assert [(each["version"], each["state"], each["partitions"]) for each in listed] == [("v2", "serves", [16])]
    gone = {changelog_topic(NAME, topology.STORE)}
    assert topics_before - topics_of(cluster.bootstrap) == gone | {f"{NAME}-dead-letters"}
    assert set(control_topic_names(NAME)) <= topics_of(cluster.bootstrap), "one of them has the record of versions"
    assert [each.name for each in (run_dir / "checkpoints").iterdir()] == [application_of(NAME, "v2")]
    assert {each.name for each in (run_dir / "nodes").iterdir()} == {"node-v2-a", "node-v2-b"}
    assert {part.name for part in cluster.parts} == {
        *("kafka", "router", "http", "processor-v2", "controller-v2", "node-v2-a", "node-v2-b")
    }
    assert all(part.is_running for part in cluster.parts)
    assert not any(part.is_running for part in (cluster.processor, cluster.controller, *cluster.nodes))


def best(event: tuple[str, bool, Any]) -> int | None:
    """Return a board's best score."""
    return None if not event[2] else round(event[2][0]["score"])
