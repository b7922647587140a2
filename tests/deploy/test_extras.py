"""Each extra in an environment of its own, made by a user without rights: what it promises starts."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import pytest

from statehouse.client import Client
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.deploy.users import User, new_user
from tests.deploy.wheels import copy_jars
from tests.support.fleet import STORE, Fleet
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long, pytest.mark.feature("extras-start")]

_COMMAND_NEEDS: Final = "statehouse: No module named 'typer': pip install 'statehouse[service]'\n"
_SPARK_S: Final = 400.0
# Each reads the router that is its argument, and prints `Isabelle`.
_PROGRAMS: Final = {
    "": """
with Client(target) as client:
    print(client.get("counts", "1").value)
""",
    "dataframe": """
with Client(target) as client:
    print(*client.to_arrow("counts").column("value").to_pylist(), end="")
    print("" if list(client.to_pandas("counts")["value"]) == ["Isabelle"] else "another frame")
""",
    "tracing": """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
kept = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(kept))
with Client(target, tracing=True) as client:
    print(client.get("counts", "1").value)
assert kept.get_finished_spans()
""",
    "registry": """
from importlib.metadata import entry_points
found = {point.name: point.load() for point in entry_points(group="statehouse.serdes")}
assert found.keys() == {"avro", "protobuf", "json-schema"}
import confluent_kafka.schema_registry
with Client(target) as client:
    print(client.get("counts", "1").value)
""",
    "sketches": """
from datasketches import count_min_sketch
sketch = count_min_sketch(3, 64)
sketch.update("a")
assert count_min_sketch.deserialize(sketch.serialize()).get_estimate("a") == 1
with Client(target) as client:
    print(client.get("counts", "1").value)
""",
}


@pytest.fixture
def user() -> Iterator[User]:
    with new_user() as made:
        yield made


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A store's topics, with an entry; its only task is given to a node that isn't there yet."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "extras", partitions=1) as made:
        made.put({"1": "Isabelle"})
        made.assign(TaskAssignment("n1"))
        yield made


@pytest.fixture(scope="module")
def router(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a router of this tree, with a node and an entry."""
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "extras-router", partitions=1) as made:
        made.put({"1": "Isabelle"})
        made.assign(TaskAssignment(made.node("n1").name))
        target = made.router().target
        _wait_for_answer(target)
        yield target


@pytest.mark.parametrize("extra", _PROGRAMS)
def test_what_has_no_command_reads_and_the_command_says_what_it_lacks(
    user: User, wheels: Path, router: str, extra: str
) -> None:
    user.install(wheels, f"statehouse[{extra}]" if extra else "statehouse")
    program = f"import sys\nfrom statehouse.client import Client\ntarget = sys.argv[1]\n{_PROGRAMS[extra]}"
    read = user.python("-c", program, router)
    assert (read.code, read.out) == (0, "Isabelle\n"), read.err
    helped = user.statehouse("--help")
    assert (helped.code, helped.out, helped.err) == (1, "", _COMMAND_NEEDS)


def test_service_s_node_and_router_answer(user: User, wheels: Path, fleet: Fleet, tmp_path: Path) -> None:
    user.install(wheels, "statehouse[service]")
    assert "Usage: statehouse" in user.statehouse("--help").out
    router = free_port()
    with ExitStack() as ends:
        start = _starter(user, fleet, tmp_path, ends)
        start("node", "--instance-id", "n1", "--port", str(free_port()), "--state-dir", str(user.home / "state"))
        start("router", "--port", str(router))
        _wait_for_answer(f"{LOOPBACK}:{router}")
    for command, lacking in (
        ("up", "processor,http"),
        ("check leaderboard", "processor"),
        ("process leaderboard --bootstrap b", "processor"),
        ("router --application-id a --bootstrap b --http-port 0", "http"),
    ):
        ran = user.statehouse(*command.split())
        assert (ran.code, "Traceback" in ran.err) == (2, False), ran.err
        # A router's proxy has the last word: that its server is gone.
        assert f"not installed: pip install 'statehouse[{lacking}]'\n" in ran.err


def test_http_s_router_serves_the_page(user: User, wheels: Path, fleet: Fleet, tmp_path: Path) -> None:
    user.install(wheels, "statehouse[http]")
    page = free_port()
    with ExitStack() as ends:
        start = _starter(user, fleet, tmp_path, ends)
        start("router", "--port", str(free_port()), "--http-port", str(page))
        poll_until(lambda: _status(f"http://{LOOPBACK}:{page}/v1") == 200, 120, "/v1")
        assert _status(f"http://{LOOPBACK}:{page}/") == 200


def test_the_processor_s_checks_an_application_and_runs_the_tests_of_a_new_one(user: User, wheels: Path) -> None:
    copy_jars(user.home / "cache")
    user.give(user.home / "cache")
    user.install(wheels, "statehouse[processor]")
    checked = user.statehouse("check", "leaderboard", timeout_s=_SPARK_S)
    assert (checked.code, "Spark can run its queries" in checked.out) == (0, True), checked.err
    up = user.statehouse("up")
    assert up.code == 2
    assert up.err.endswith("which are not installed: pip install 'statehouse[processor,http]'\n")
    assert user.statehouse("new", "hello").code == 0
    readme = (user.work / "hello" / "README.md").read_text()
    assert "`pip install pytest`" in readme
    user.install(wheels, "pytest")
    python = str(user.environment / "bin" / "python")
    tested = user.run("sh", "-c", f"cd hello && {python} -m pytest -q", timeout_s=_SPARK_S)
    assert (tested.code, "3 passed" in tested.out) == (0, True), tested.out + tested.err


def _starter(user: User, fleet: Fleet, folder: Path, ends: ExitStack) -> Callable[..., None]:
    """Return what starts a part of a fleet as the user; it must end well when the stack does."""
    common = ("--application-id", fleet.application_id, "--bootstrap", fleet.bootstrap)

    def start(command: str, *options: str) -> None:
        log = folder / f"{command}.log"
        process = user.start(log, str(user.environment / "bin" / "statehouse"), command, *common, *options)

        def end() -> None:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0, log.read_text()[-3000:]

        ends.callback(end)

    return start


def _wait_for_answer(target: str) -> None:
    with Client(target, timeout=5.0) as client:

        def answers() -> bool:
            try:
                return client.get(STORE, "1").value == "Isabelle"
            except LookupFailure:
                return False

        poll_until(answers, 120, f"{target} to answer")


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=10).status_code
    except httpx.HTTPError:
        return 0
