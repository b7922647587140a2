import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from processor.application.topology import Topology
from processor.reports.commits import Superseded
from processor.run import controller, queries
from processor.run import processor as runner
from processor.run.processor import Processor, RunningQuery
from processor.run.supervision import QueryDied
from processor.settings import ProcessorSettings
from processor.topics.creation import ApplicationTopics
from statehouse.errors import ConfigurationError
from statehouse.local.ports import free_port
from tests.support.metrics import scrape


def test_a_topology_is_a_module_with_an_id_and_build():
    topology = Topology.load("examples.leaderboard.topology")
    assert topology.application_id == "video-game-leaderboard"
    assert callable(topology.build)


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(ConfigurationError, match=r"module 'examples.nothing' not found"):
        Topology.load("examples.nothing")


def test_a_module_without_a_topology_is_refused():
    with pytest.raises(ConfigurationError, match="must define application_id"):
        Topology.load("examples.leaderboard.sample")


def processor(metrics_port: int) -> Processor:
    settings = ProcessorSettings(bootstrap="b:1", checkpoint_dir="unused", metrics_port=metrics_port)
    return Processor(Topology("app", lambda _app: None), settings)


def test_metrics_are_served_on_the_loopback_until_the_stop():
    port = free_port()
    running = processor(port)
    running._serve()
    assert "statehouse_processor_batch_id" in scrape(port).families
    with socket.create_server(("127.0.0.2", port)):
        pass  # free, as the server listens on 127.0.0.1 alone
    running.stop()
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_a_taken_metrics_port_is_a_clear_error():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigurationError, match="choose another --metrics-port"),
    ):
        processor(taken.getsockname()[1])._serve()


def test_all_queries_together_have_the_time_of_a_stop():
    """A unit's, or a pod's, time to end is computed from it."""
    done: list[str] = []
    times: list[float] = []

    def stop(timeout_s: float) -> None:
        done.append("stop")
        times.append(timeout_s)
        time.sleep(min(timeout_s, 0.1))  # its batch takes longer

    query = SimpleNamespace(name="q", failure=None, finish=lambda: done.append("finish"), stop=stop)
    nothing = SimpleNamespace(stop=lambda: None, finish=lambda _failure: None)
    settings = ProcessorSettings(bootstrap="b:1", checkpoint_dir="unused", stop_timeout_ms=100)
    running = Processor(Topology("app", lambda _app: None), settings)
    running._running += [RunningQuery(query, nothing, nothing)] * 3  # type: ignore[arg-type] # stand-ins
    running.stop()
    assert done == [*["finish"] * 3, *["stop"] * 3]
    assert times[0] > 0
    assert times[1:] == [0, 0]


@pytest.mark.feature("siblings-go-on")
def test_a_query_that_is_given_up_leaves_the_others_running_and_the_last_one_ends_all() -> None:
    looked: list[str] = []

    def query(name: str, failure: QueryDied | None) -> SimpleNamespace:
        def look(_now: float) -> None:
            looked.append(name)
            if failure is not None and not of_it.is_given_up:
                of_it.is_given_up = True
                raise failure

        of_it = SimpleNamespace(name=name, is_given_up=False, look=look)
        return of_it

    def processor_of(*queries: SimpleNamespace) -> Processor:
        running = processor(free_port())
        nothing = SimpleNamespace()
        running._running += [RunningQuery(each, nothing, nothing) for each in queries]  # type: ignore[arg-type] # stand-ins
        return running

    turns = iter([False, False, True])
    processor_of(query("bad", QueryDied("bad ended")), query("good", None)).wait(lambda: next(turns))
    assert looked == ["bad", "good", "bad", "good"]
    with pytest.raises(QueryDied, match="worse ended"):
        processor_of(query("bad", QueryDied("bad ended")), query("worse", QueryDied("worse ended"))).wait(lambda: False)
    superseded = QueryDied("another one runs")
    superseded.__cause__ = Superseded("by another")
    with pytest.raises(QueryDied, match="another one"):
        processor_of(query("bad", superseded), query("good", None)).wait(lambda: False)


@pytest.mark.feature("driver-fenced-goes")
@pytest.mark.parametrize("choice", ["own", "none"])
def test_a_processor_may_leave_the_assignment_to_another_controller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, choice: Literal["own", "none"]
) -> None:
    done: list[tuple[str, list[str]]] = []

    def note(what: str) -> Callable[..., SimpleNamespace]:
        def called(*arguments: object, **_options: object) -> SimpleNamespace:
            done.append((what, [store.name for store in arguments[2]]))  # type: ignore[attr-defined] # the stores
            return SimpleNamespace(start=lambda: None, stop=lambda: None)

        return called

    monkeypatch.setattr(queries, "settings_to_go_on", lambda *_: {})
    monkeypatch.setattr(queries, "KeptRate", lambda *_: SimpleNamespace(read=lambda: None, keep=print))
    monkeypatch.setattr(runner, "Subscription", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(runner, "prepared_topics", lambda *_: ApplicationTopics({"rates": 1}, 1))
    monkeypatch.setattr(controller, "OwnershipController", note("own"))
    monkeypatch.setattr(controller, "check_published", note("none"))
    settings = ProcessorSettings(bootstrap="unused:1", checkpoint_dir=str(tmp_path), controller=choice)
    topology = Topology("app", lambda app: app.global_store("rates", "rates"))
    processor = Processor(topology, settings, open_spark=lambda *_: None)
    processor.start()
    processor.stop()
    assert done == [(choice, ["rates"])]
