"""The Go and the Java program of docs/other-languages.md, built by `make tools`, against a real node and router."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.java import find_java
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.v1 import types_pb2
from tests.support.console import commands
from tests.support.fake_router import STAMP, fake_router
from tests.support.fleet import Fleet, ServerProcess, is_answered_by_active
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet
from tests.support.tools import TOOLS, built

_PAGE: Final = (Path(__file__).parents[3] / "docs" / "other-languages.md").read_text()
# A busy machine starts a JVM in seconds.
_TIMEOUT_S: Final = 60


@dataclass(frozen=True, slots=True)
class Program:
    """One of the programs."""

    command: Sequence[str]

    def run(self, *arguments: str) -> tuple[int, str]:
        """Return its exit code and what it printed."""
        done = subprocess.run(
            [*self.command, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout


def go() -> Program:
    return Program([built(TOOLS / "bin" / "readkey")])


def java() -> Program:
    class_path = (TOOLS / "readkey" / "class-path.txt").read_text().strip()
    # It ends before compiling it well would pay.
    options = ["-XX:TieredStopAtLevel=1", "-cp", f"{built(TOOLS / 'readkey' / 'readkey.jar')}:{class_path}"]
    return Program([str(find_java()), *options, "readkey.ReadKey"])


@pytest.fixture(scope="module", params=[go, java], ids=["go", "java"])
def program(request: pytest.FixtureRequest) -> Program:
    found: Program = request.param()
    return found


@pytest.fixture(scope="module")
def router(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "clients", partitions=1, value_serde="json") as fleet:
        node, router = fleet.node("node-a"), fleet.router()
        serve(fleet, node, router)
        yield router


def serve(fleet: Fleet, node: ServerProcess, router: ServerProcess) -> None:
    fleet.put({"ann": '{"count": 12}', "bob": '{"count": 3}'})
    fleet.assign(TaskAssignment(node.name))
    fleet.wait_running([node])
    poll_until(lambda: is_answered_by_active(router, "ann"), 30, "the router to know the node")


def stable(printed: str) -> list[str]:
    """Return lines without what differs from run to run or between the languages: numbers, and spaces in JSON."""
    return [re.sub(r"\d+(\.0)?", "N", line).replace(" ", "") for line in printed.strip().splitlines()]


@pytest.mark.feature("python-client-sync")
def test_what_the_page_shows_comes_back(router: ServerProcess, program: Program) -> None:
    shown = commands(_PAGE)
    assert len(shown) == 3
    for command in shown:
        name, *arguments = shlex.split(command.line.replace("localhost:7100", router.target))
        assert name == "readkey"
        _, printed = program.run(*arguments)
        assert stable(printed) == stable(command.output), command.line


def test_the_second_read_asks_for_the_position_of_the_first(program: Program) -> None:
    with fake_router() as router:
        code, printed = program.run(router.target, "boards", "nobody", "2000")
        bounds = [request.freshness for request in router.requests]
    assert code == 0
    assert printed.splitlines()[::2] == ["nobody: not there"] * 2
    seen = types_pb2.StorePosition(store="boards", partition=STAMP.partition, position=STAMP.position)
    assert bounds == [
        types_pb2.Freshness(max_staleness_ms=2_000),
        types_pb2.Freshness(max_staleness_ms=2_000, at_least=types_pb2.Positions(positions=[seen])),
    ]


def test_an_overloaded_router_says_when_to_come_back(program: Program) -> None:
    with fake_router() as router:
        router.failure = LookupFailure(Reason.OVERLOADED, "it is full")
        code, printed = program.run(router.target, "boards", "1", "2000")
    assert code == 1
    assert printed.splitlines() == ["ERROR_REASON_OVERLOADED: it is full", "may be sent again after 1000 ms"]


def test_a_router_that_is_not_there_may_come(program: Program) -> None:
    code, printed = program.run(f"{LOOPBACK}:{free_port()}", "boards", "1", "2000")
    assert code == 1
    assert printed.upper().startswith("UNAVAILABLE: ")
    assert printed.splitlines()[-1] == "may be sent again after 1000 ms"
