"""How long nobody is active for the tasks of a killed node, and whether one that is frozen or cut off keeps its tasks.

`python -m tests.robustness.kills kill 200 FILE` adds a line of JSON to the file for each time, and goes on where it
ends. With `--release` the last release is played instead of this version.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Final

from statehouse.contract.assignment import Assignment
from statehouse.v1 import types_pb2
from tests.robustness.cluster import NO_DOORS, ClusterShape, RobustCluster
from tests.robustness.figures import percentile
from tests.robustness.networks import Namespaces
from tests.support.fleet import STORE, THIS, Build, ServerProcess, is_answered_by_active
from tests.support.kafka import produce_placed
from tests.support.lookups import LookupLoad
from tests.support.polling import poll_until
from tests.support.proxy import PROXY
from tests.upgrades.builds import last_release

KILL, FREEZE, CUT = "kill", "freeze", "cut"
_SHAPE: Final = ClusterShape(nodes=5, partitions=10, starting_nice=0)
_OF_A_NODE: Final = 3
"""How often each node of a cluster is killed: one that ends more often is held back."""
_LOOKUPS_S: Final = 40
"""Of each key."""
_SILENT_S: Final = 4.0
"""Less than a session timeout, and much more than a promotion takes."""
_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one time.

    Attributes:
        gap_s: from the kill until each of the node's keys was answered by another active; 0 for other kinds.
        noticed_s: from the kill until the controller said that the node has ended; 0 likewise, or if it didn't.
        named_s: from the kill until the epoch was read that names the last of these; 0 likewise.
        epochs: published meanwhile.

    """

    build: str
    kind: str
    node: str
    gap_s: float
    noticed_s: float
    named_s: float
    epochs: int


class Trials:
    """A cluster of a build in which nodes end, or fall silent, one after the other."""

    def __init__(self, directory: Path, build: Build, kind: str) -> None:
        self._build, self._kind = build, kind
        self._networks = Namespaces() if kind == CUT else None
        self._epochs: list[tuple[float, Assignment]] = []
        self._directory = directory

    @contextmanager
    def _cluster(self) -> Iterator[RobustCluster]:
        networks = self._networks
        with networks or nullcontext():
            cluster = RobustCluster(
                self._directory,
                _SHAPE,
                lambda at, assignment: self._epochs.append((at, assignment)),
                _plain_node if networks is None else networks.start_node,
                NO_DOORS if networks is None else networks.doors,
            )
            cluster.build = self._build
            with cluster:
                yield cluster

    def begin(self) -> Generator[Trial, None, None]:
        """Start the cluster, and yield trials as long as it can be used; it ends with the generator."""
        with self._cluster() as cluster:
            keys = _keys(cluster)
            records = ((partition, key.encode(), b"1", 0) for partition, key in keys.items())
            produce_placed(cluster.bootstrap, cluster.changelog, records)
            router = next(iter(cluster.routers.values()))
            names = list(cluster.nodes)
            nodes = names * _OF_A_NODE if self._kind == KILL else cycle(names)
            for name in nodes:
                poll_until(partial(cluster.actives_of, name), _DEADLINE_S, f"{name} to be active")
                cluster.wait_settled()
                of_node = [keys[partition] for partition in cluster.actives_of(name)]
                _wait_answered(router, of_node)
                if self._kind == KILL:
                    yield self._killed(cluster, router, name, of_node)
                    cluster.restart(name)
                else:
                    yield self._silenced(cluster, router, name, of_node)

    def _killed(self, cluster: RobustCluster, router: ServerProcess, name: str, keys: list[str]) -> Trial:
        known = len(self._epochs)
        with LookupLoad(router.target, STORE, keys, _LOOKUPS_S * len(keys), active_only=True) as load:
            load.await_more(_LOOKUPS_S)
            killed_at, wall_s, read = time.monotonic(), time.time(), len(cluster.controller.log)
            cluster.kill(name)

            def gap_s() -> float | None:
                ended_at: dict[str, float] = {}
                for lookup in load.answers(killed_at):
                    answer = lookup.response
                    if answer is None or answer.replica.role != types_pb2.REPLICA_ROLE_ACTIVE:
                        continue
                    if answer.replica.host.instance_id != name:
                        at = lookup.due_at + lookup.took_s
                        ended_at[lookup.key] = min(at, ended_at.get(lookup.key, at))
                return max(ended_at.values()) - killed_at if len(ended_at) == len(keys) else None

            gap = poll_until(gap_s, _DEADLINE_S, f"others to be active for the tasks of {name}")
        named_at = next(
            (at for at, epoch in self._epochs[known:] if all(task.active != name for task in epoch.tasks.values())),
            killed_at,
        )
        noticed_s = _noticed_at_s(cluster.controller.log[read:], wall_s) - wall_s
        return Trial(self._build.name, KILL, name, gap, noticed_s, named_at - killed_at, len(self._epochs) - known)

    def _silenced(self, cluster: RobustCluster, router: ServerProcess, name: str, keys: list[str]) -> Trial:
        node, known = cluster.nodes[name], len(self._epochs)
        end: Callable[[], None]
        if self._networks is None:
            node.freeze()
            end = node.thaw
        else:
            inside = self._networks.of[name]
            inside.cut()
            end = inside.heal
        over_at = time.monotonic() + _SILENT_S
        try:
            poll_until(lambda: time.monotonic() >= over_at, 2 * _SILENT_S, "the silence to last")
        finally:
            end()
        _wait_answered(router, keys)
        return Trial(self._build.name, self._kind, name, 0.0, 0.0, 0.0, len(self._epochs) - known)


def _noticed_at_s(log: str, default_s: float) -> float:
    """Return when a controller said that a node has ended, in seconds of the wall clock."""
    for line in log.splitlines():
        if "a node has ended" in line:
            return datetime.fromisoformat(json.loads(line)["timestamp"]).timestamp()
    return default_s


def _wait_answered(router: ServerProcess, keys: list[str]) -> None:
    poll_until(lambda: all(is_answered_by_active(router, key) for key in keys), _DEADLINE_S, "actives to answer")


def _plain_node(cluster: RobustCluster, name: str) -> ServerProcess:
    return cluster.node(name)


def _keys(cluster: RobustCluster) -> dict[int, str]:
    """Return a key for each partition."""
    found: dict[int, str] = {}
    for number in range(10_000):
        found.setdefault(cluster.partition_of(f"k{number}"), f"k{number}")
    return found


def played(file: Path, kind: str, times: int, build: Build = THIS) -> list[Trial]:
    """Go on with the trials of a kind and a build in a file until there are so many; return them."""
    lines = file.read_text().splitlines() if file.exists() else []
    done = [Trial(**json.loads(line)) for line in lines]
    done = [trial for trial in done if (trial.kind, trial.build) == (kind, build.name)]
    while len(done) < times:
        directory, is_kept = Path(tempfile.mkdtemp(prefix="kills-")), False
        try:
            with closing(Trials(directory, build, kind).begin()) as trials:
                for trial in islice(trials, times - len(done)):
                    done.append(trial)
                    with file.open("a") as added:
                        added.write(json.dumps(asdict(trial)) + "\n")
        except Exception as failure:
            is_kept = True
            failure.add_note(f"logs and state are in {directory}")
            raise
        finally:
            if not is_kept:
                shutil.rmtree(directory)
    return done[:times]


def summary(trials: list[Trial]) -> str:
    """Return the figures of trials of one kind, in a line."""
    if any(trial.kind != KILL for trial in trials):
        return f"{len(trials)} times: {sum(trial.epochs for trial in trials)} epochs"
    parts = [f"{len(trials)} times"]
    for what in ("gap", "noticed", "named"):
        ordered = sorted(getattr(each, f"{what}_s") for each in trials)
        shares = ", ".join(f"p{share:g} {percentile(ordered, share / 100):.3f}" for share in (50, 90, 99, 100))
        parts.append(f"{what} in s: {shares}")
    return "; ".join(parts)


def main() -> int:
    """Play, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness.kills", description=__doc__)
    parser.add_argument("kind", choices=(KILL, FREEZE, CUT))
    parser.add_argument("times", type=int)
    parser.add_argument("file", type=Path)
    parser.add_argument("--release", action="store_true", help="the last release, in place of this version")
    options = parser.parse_args()
    os.environ.setdefault("STATEHOUSE_PROXY", str(PROXY))
    with tempfile.TemporaryDirectory(prefix="release-") as directory:
        build = last_release(Path(directory)) if options.release else THIS
        sys.stdout.write(summary(played(options.file, options.kind, options.times, build)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
