"""One's own application from nothing: made, started, asked, changed while it runs, and its own tests."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statehouse.cli.exits import ExitCode
from statehouse.client import Client
from statehouse.errors import LookupFailure
from statehouse.local.cluster import LocalCluster, cluster_of
from statehouse.local.new_application import Template
from statehouse.local.samples import Sample, send
from tests.support.polling import poll_until
from tests.support.statehouse import ANY_PORTS, ROOT, Ran, statehouse, staying

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

UP_S = 900.0
CHANGED_S = 400.0
DATA_OF_ANN = {"orders": 3, "total": 18, "largest": 12}
# What the lookups answer that the README of each other kind of application has, the first store's and a scan's.
ANSWERS = {
    Template.CDC: ('"city": "Lima"', "Oslo"),
    Template.WINDOWS: ('"views": 3', "help"),
    Template.FEATURES: ('"orders": 3', "cid"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new application."""
    parent = tmp_path_factory.mktemp("from-nothing")
    ran = statehouse(parent, "new", "hello")
    assert ran.code == ExitCode.DONE, ran.err
    assert "cd hello && statehouse up" in ran.out
    return parent / "hello"


@pytest.fixture(scope="module")
def started(made: Path) -> Iterator[Ran]:
    """What `statehouse up` has printed there."""
    try:
        ran = statehouse(made, "up", *ANY_PORTS, timeout_s=UP_S)
        assert ran.code == ExitCode.DONE, ran.err
        yield ran
    finally:
        statehouse(made, "down", timeout_s=UP_S)
        assert not (made / ".statehouse").exists()


@pytest.fixture
def cluster(made: Path, started: Ran) -> LocalCluster:
    return cluster_of(made / ".statehouse")


@pytest.mark.feature("application-nothing-statehouse")
def test_its_own_tests_pass(made: Path):
    its_tests_pass(made)


@pytest.mark.feature("application-templates")
@pytest.mark.parametrize("template", ANSWERS)
def test_each_kind_of_application_is_checked_tested_and_runs(tmp_path: Path, template: Template):
    ran = statehouse(tmp_path, "new", "hello", "--template", template)
    assert ran.code == ExitCode.DONE, ran.err
    made = tmp_path / "hello"
    checked = statehouse(made, "check", timeout_s=CHANGED_S)
    assert checked.code == ExitCode.DONE, checked.err
    its_tests_pass(made)
    try:
        started = statehouse(made, "up", "--nodes", "1", *ANY_PORTS, timeout_s=UP_S)
        assert started.code == ExitCode.DONE, started.err
        readme = (made / "README.md").read_text(encoding="utf-8")
        lookups = re.findall(r"^statehouse ((?:get|windows|scan|scan-windows) .*)$", readme, re.MULTILINE)
        assert len(lookups) == 2
        for lookup, answer in zip(lookups, ANSWERS[template], strict=True):
            poll_until(
                lambda lookup=lookup, answer=answer: answer in statehouse(made, *lookup.split()).out,
                CHANGED_S,
                f"{answer} to be what {lookup} says",
            )
    finally:
        statehouse(made, "down", timeout_s=UP_S)


def its_tests_pass(made: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=made,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(Path.home())},
        capture_output=True,
        text=True,
        check=False,
        timeout=CHANGED_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.mark.feature("application-nothing-statehouse")
def test_what_up_says_to_try_works(made: Path, started: Ran):
    tries = [line.partition("statehouse ")[2] for line in started.out.splitlines() if line.startswith("try ")]
    assert tries == ["get customers ann"]
    ran = statehouse(made, *shlex.split(tries[0]), "-o", "json")
    assert ran.code == ExitCode.DONE, ran.err
    assert '"largest": 12' in ran.out


@pytest.mark.feature("start-says-does")
def test_a_start_says_what_it_does(started: Ran):
    said = started.err
    for words in (
        "kafka        ready",
        "Spark is starting",
        "Spark has started after",
        "first batch of query customers",
    ):
        assert words in said
    assert said.index("Spark is starting") < said.index("Spark has started") < said.index("first batch of query")


def test_the_settings_of_its_folder_are_the_parts(cluster: LocalCluster):
    assert len(cluster.nodes) == 2
    with Client(cluster.router.address) as client:
        assert client.fleet().application_id == "hello"
        assert client.get("customers", "ann").value == DATA_OF_ANN


# Last, because it changes the application, and ends the cluster.
@pytest.mark.feature("up-watch-starts")
def test_a_change_of_the_code_starts_the_processor_again(made: Path, cluster: LocalCluster, tmp_path: Path):
    topology, said = made / "hello" / "topology.py", tmp_path / "said"
    working = topology.read_text()

    def becomes(words: str, times: int = 1) -> None:
        poll_until(lambda: said.read_text().count(words) >= times, CHANGED_S, f"{words!r} in what it says")

    with Client(cluster.router.address) as client, staying(made, said, "up", "--watch") as watching:
        becomes("watching the Python files")
        topology.write_text(working.replace("def build(", "def build(("))
        becomes("waiting for the next change")
        assert "SyntaxError" in said.read_text()
        assert client.get("customers", "ann").value == DATA_OF_ANN, "the nodes go on"

        topology.write_text(working.replace('F.struct("orders"', 'F.struct(F.lit("new").alias("code"), "orders"'))
        becomes("processor    ready in")
        send(cluster.bootstrap, [Sample("orders", "ann", '{"item": "pie", "amount": 2}')])
        poll_until(lambda: code_of(client) == "new", CHANGED_S, "an order that the new code has taken")
        assert client.get("customers", "ann").value == {"code": "new", "orders": 4, "total": 20, "largest": 12}

        (made / "hello" / "notes.txt").write_text("no code")
        assert watching.poll() is None
        watching.send_signal(signal.SIGINT)
        assert watching.wait(CHANGED_S) == ExitCode.INTERRUPTED
    assert not (made / ".statehouse").exists(), "it stops everything and deletes its data"
    assert said.read_text().count("the processor starts again") == 2


@pytest.mark.feature("up-watch-starts")
@pytest.mark.feature("check-names-mistakes")
def test_an_application_that_is_broken_at_first_is_waited_for(tmp_path: Path):
    said = tmp_path / "said"
    assert statehouse(tmp_path, "new", "broken").code == ExitCode.DONE
    made = tmp_path / "broken"
    topology, sample = made / "broken" / "topology.py", made / "broken" / "sample.py"
    working, data = topology.read_text(), sample.read_text()
    topology.write_text(working.replace("def build(", "def build(("))
    sample.write_text(f"{data}\nRECORDS = nothing\n")

    def waits(times: int) -> None:
        words = "waiting for the next change of the code"
        poll_until(lambda: said.read_text().count(words) == times, UP_S, f"it to wait for a change {times} times")

    with staying(made, said, "up", "--watch", "--nodes", "1", *ANY_PORTS) as watching:
        waits(1)
        assert "SyntaxError" in said.read_text()
        topology.write_text(working.replace("app.store(CUSTOMERS", "app.nothing(CUSTOMERS"))
        waits(2)
        assert "has no attribute 'nothing'" in said.read_text()
        assert not (made / ".statehouse" / "state.json").exists(), "nothing is started for code that can't work"
        topology.write_text(working)
        waits(3)
        assert "name 'nothing' is not defined" in said.read_text()
        broker = cluster_of(made / ".statehouse").kafka.pid
        assert broker is not None, "what doesn't run the code goes on"

        sample.write_text(data)
        poll_until(lambda: "try        statehouse get customers ann" in said.read_text(), UP_S, "it to be up")
        cluster = cluster_of(made / ".statehouse")
        assert cluster.kafka.pid == broker
        with Client(cluster.router.address) as client:
            assert client.get("customers", "ann").value == DATA_OF_ANN
        assert watching.poll() is None
    assert watching.returncode == ExitCode.INTERRUPTED
    assert not (made / ".statehouse").exists()


def code_of(client: Client) -> object:
    try:
        value = client.get("customers", "ann").value
    except LookupFailure:
        return None
    return value.get("code") if isinstance(value, dict) else None
