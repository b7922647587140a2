"""The load generator, built by `make tools`, against a real node and router. Its own tests are next to its source."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from bench.data import key_of, value_of
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, ServerProcess
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet

_PROGRAM: Final = Path(__file__).parents[3] / ".tools" / "bin" / "loadgen"
_KEYS: Final = 300
_WRONG_ANSWERS: Final = 3


@dataclass(frozen=True, slots=True)
class Servers:
    """A node with two partitions, and a router to it."""

    node: ServerProcess
    router: ServerProcess

    def load(self, way: str, *options: str, keys: int = _KEYS) -> tuple[int, dict[str, Any]]:
        """Run the load generator for a moment; return its exit code and its report."""
        assert _PROGRAM.exists(), f"there is no {_PROGRAM}: run `make tools`"
        straight = ["--targets", self.node.target, "--owners", "0,0"]
        where = straight if way == "straight" else ["--targets", self.router.target, "--partitions", "2"]
        run = ["--concurrency", "4", "--duration-s", "0.5", "--warmup-s", "0", "--timeout-ms", "20000"]
        command = [str(_PROGRAM), *where, *run, "--store", STORE, "--keys", str(keys), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, report


@pytest.fixture(scope="module")
def servers(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """All keys have their values; the key after them hasn't, and the next one isn't there."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "loadgen", partitions=2) as fleet:
        node, router = fleet.node("node-a"), fleet.router()
        fleet.put({key_of(number): value_of(number) for number in range(_KEYS)} | {key_of(_KEYS): "spoilt"})
        fleet.assign(TaskAssignment(node.name), TaskAssignment(node.name))
        fleet.wait_running([node])

        def answers() -> bool:
            keys = [fleet.keys_in(partition)[0] for partition in range(fleet.partitions)]
            try:
                return all(not router.get(key, max_lag=0).found for key in keys)
            except LookupFailure:
                return False

        poll_until(answers, 30, "the router to know the node")
        yield Servers(node, router)


@pytest.mark.parametrize("way", ["straight", "router"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--method", "get"), id="get"),
        pytest.param(("--method", "get", "--raw"), id="raw"),
        pytest.param(("--method", "batch_get", "--batch", "50"), id="batch"),
        pytest.param(("--method", "scan", "--span", "200"), id="scan"),
    ],
)
def test_every_answer_is_right(servers: Servers, way: str, options: tuple[str, ...]) -> None:
    code, report = servers.load(way, *options)
    assert code == 0, report["errors"]
    assert report["passed"], report["errors"]
    assert report["lookups"]["ok"] >= report["requests"]["ok"] > 0


def test_wrong_and_missing_values_end_the_run_with_an_error(servers: Servers) -> None:
    code, report = servers.load("straight", "--method", "batch_get", "--batch", "1000", keys=_KEYS + 2)
    assert code == _WRONG_ANSWERS
    assert set(report["lookups"]["by_outcome"]) == {"ok", "wrong", "missing"}
    assert not report["passed"]
