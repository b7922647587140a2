"""What nodes, routers and the processor serve at /metrics; docs/metrics.md lists all of it and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from processor.reports.metrics import ProcessorMetrics
from processor.reports.progress import BatchProgress
from processor.states.lifecycle import ApplicationState, ControllerState, QueryState
from processor.states.listeners import ProcessorListeners
from processor.states.processor_states import ProcessorStates
from query_service.states.faults import Fault, FaultOutcome
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import Scrape, scrape, scrape_registry
from tests.support.polling import poll_until
from tests.support.progress import progress_json
from tests.support.web import web_server

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
MINUTE = 60_000


class Documented(NamedTuple):
    kind: str
    labels: frozenset[str]


def documented(component: str) -> dict[str, Documented]:
    """Read the page's rows `| name | type | labels | ...` of a component."""
    rows = re.findall(rf"^\| `(statehouse_{component}_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    return {name: Documented(kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def assert_documented(scraped: Scrape, component: str) -> None:
    """Compare names and types both ways, and labels where there are series.

    What the program says of its stores is listed with what RocksDB says.
    """
    listed = documented(component)
    served = [
        ((f"{name}_total" if family.type == "counter" else name).replace("_pebble_", "_rocksdb_"), family)
        for name, family in scraped.families.items()
    ]
    assert {(name, family.type) for name, family in served} == {(n, each.kind) for n, each in listed.items()}
    for name, family in served:
        found = {frozenset(sample.labels.keys() - {"le"}) for sample in family.samples}
        assert found <= {listed[name].labels}, name


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


def assert_write_times(node_port: int) -> None:
    """Compare what a scrape says of puts, deletes and flushes; waits for the first flush."""
    of = {"store": STORE, "role": "ACTIVE"}
    poll_until(lambda: scrape(node_port).value("statehouse_node_flushes_total", **of), 30, "a checkpoint")
    served = scrape(node_port)
    for kind in ("put", "delete", "flush"):
        longest = served.value(f"statehouse_node_{kind}_seconds_max", **of)
        assert 0 < longest < 30
        assert 0 < served.value(f"statehouse_node_{kind}_seconds_total", **of) < 30


def assert_engines_say(node_port: int) -> None:
    """Compare what engines say of their memory and files, the program's every second."""

    def has_told() -> bool:
        value = scrape(node_port).value
        calls = value("statehouse_node_proxy_calls_total", way="stores", code="OK")
        return calls > 0 and value("statehouse_node_pebble_flush_bytes_total") > 0

    poll_until(has_told, 20, "the program's word of its calls and of a flush")
    value = scrape(node_port).value
    assert value("statehouse_node_proxy_stores_open") == 1
    for name in ("block_cache_capacity", "write_buffer"):
        assert value(f"statehouse_node_pebble_{name}_bytes") > 0, name
    for store in (STORE, "hours"):
        assert value("statehouse_node_memtable_bytes", store=store) > 0, store


def use_all_reads(node: ServerProcess) -> None:
    node.get("a")
    batch = query_service_pb2.BatchGetRequest(
        requests=[query_service_pb2.GetRequest(store=name, key=types_pb2.Key(text="a")) for name in (STORE, "none")]
    )
    node.call(node.query.BatchGet, batch)
    a = types_pb2.Key(text="a")
    node.call(node.query.Count, query_service_pb2.CountRequest(store=STORE, partition=0, exact=True))
    with pytest.raises(LookupFailure):
        node.get("a", store="none")
    for bounds in ({}, {"prefix": a}, {"from_key": a}):
        scan(node, **bounds)


def scan(node: ServerProcess, **bounds: types_pb2.Key) -> None:
    node.call(node.query.Scan, query_service_pb2.ScanRequest(store=STORE, partition=0, **bounds))


def wait_for_reads(node_port: int, query: str) -> Scrape:
    """Return what is counted once the first read of a kind is."""
    sample = "statehouse_node_read_duration_seconds_count"
    poll_until(lambda: scrape(node_port).value(sample, query=query), 20, "the read to be counted")
    return scrape(node_port)


@pytest.mark.feature("clients-command-line")
@pytest.mark.feature("durations-puts-deletes")
@pytest.mark.feature("metric-page-one")
def test_node_and_router_count_what_happens(fleet: Fleet) -> None:
    node_port, router_port = free_port(), free_port()
    fleet.put({"a": "11", "b": "22", "c": "3", "d": None})
    fleet.add_store("hours", kind="window", retention_ms=10 * MINUTE, window_size_ms=MINUTE)  # in RocksDB
    fleet.put_records([("a", WindowKey(b"a", 0).to_bytes(), b"1", 0)], "hours")
    node = fleet.node("n1", metrics_port=node_port, checkpoint_interval_ms=500)
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    router = fleet.router(metrics_port=router_port)
    poll_until(lambda: answers(router), 20, "the router")
    fleet.put({"c": None})
    poll_until(lambda: not node.get("c").found, 20, "the deletion")
    # The program tells ten times a second what it has read: also all that was before this page.
    scan(node, prefix=types_pb2.Key(text="a"))
    before = wait_for_reads(node_port, "prefix")
    use_all_reads(node)
    served = wait_for_reads(node_port, "range")

    of = {"store": STORE, "role": "ACTIVE"}
    value = served.value
    assert (value("statehouse_node_puts_total", **of), value("statehouse_node_deletes_total", **of)) == (3, 2)
    assert_write_times(node_port)
    assert value("statehouse_node_written_bytes_total", **of) == len("a11b22c3d") + len("c")
    assert value("statehouse_node_restored_records_total", **of) == 4
    assert value("statehouse_node_full_restores_total", store=STORE, fault="no_state") == 1
    assert value("statehouse_node_position", **of) == 5
    assert (value("statehouse_node_partitions", **of), value("statehouse_node_lag_records", **of)) == (1, 0)
    assert value("statehouse_node_restore_remaining_records", **of) == 0
    for query, times, size in (("get", 2, 4), ("all", 1, 6), ("prefix", 1, 3), ("range", 1, 6), ("count", 1, 0)):
        for name, expected in (("read_duration_seconds_count", times), ("read_bytes_total", size)):
            sample = f"statehouse_node_{name}"
            assert value(sample, query=query, **of) - before.value(sample, query=query, **of) == expected, (query, name)
    assert value("statehouse_node_calls_total", method="BatchGet", outcome="OK") >= 1
    assert value("statehouse_node_calls_total", method="Get", outcome="UNKNOWN_STORE") == 1
    assert value("statehouse_node_batch_entry_failures_total", reason="UNKNOWN_STORE") == 1
    assert value("statehouse_node_state", state="RUNNING") == value("statehouse_node_tasks", state="running") == 1
    assert served.labels("statehouse_node_state") == [{"state": "RUNNING"}]
    assert value("statehouse_node_rebalances_total") == 1
    assert value("statehouse_node_task_state_changes_total", **{"from": "restoring", "to": "running"}) == 1
    assert value("statehouse_node_state_changes_total", to="RUNNING") >= 1
    assert_engines_say(node_port)
    assert served.labels("statehouse_node_faults_total") == []

    fleet.assign(TaskAssignment("other", ("n1",)))
    poll_until(
        lambda: scrape(node_port).value("statehouse_node_partitions", store=STORE, role="STANDBY"), 20, "the role"
    )
    fleet.put({"e": "5"})
    poll_until(lambda: scrape(node_port).value("statehouse_node_puts_total", role="STANDBY") == 1, 20, "the record")
    assert scrape(node_port).value("statehouse_node_puts_total", **of) == 3, "what was counted in a role stays there"
    fleet.assign(TaskAssignment("other"))
    poll_until(lambda: scrape(node_port).value("statehouse_node_dormant_tasks") == 1, 20, "the task to be given up")
    assert scrape(node_port).value("statehouse_node_partitions") == 0

    assert_documented(served, "node")
    assert_documented(scrape(router_port), "router")


@pytest.mark.feature("windows-expire-dropping")
def test_late_records_and_expired_segments_are_counted(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    window = {"kind": "window", "retention_ms": 10 * MINUTE, "window_size_ms": MINUTE}
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1, **window) as fleet:
        port = free_port()
        starts = [0, 1, 30, 2]
        fleet.put_records([("k", WindowKey(b"k", n * MINUTE).to_bytes(), b"v", n * MINUTE) for n in starts])
        node = fleet.node("n1", metrics_port=port)
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        fleet.put_records([("k", b"short", b"v", 0), ("k", WindowKey(b"k", 60 * MINUTE).to_bytes(), b"v", 60 * MINUTE)])
        poll_until(lambda: scrape(port).value("statehouse_node_skipped_records_total") == 1, 20, "the unreadable one")
        poll_until(lambda: scrape(port).value("statehouse_node_position") == 6, 20, "the last record")
        request = query_service_pb2.FetchWindowsRequest(store=STORE, key=types_pb2.Key(text="k"))
        assert len(node.call(node.query.FetchWindows, request).windows) == 1
        reads = "statehouse_node_read_duration_seconds_count"
        poll_until(lambda: scrape(port).value(reads, query="fetch_windows") == 1, 20, "the program's word of its read")
        served = scrape(port)
        assert served.value("statehouse_node_late_records_total", store=STORE) == 1
        assert served.value("statehouse_node_expired_segments_total", store=STORE) == 2
        assert_documented(served, "node")


def test_the_web_process_counts_what_is_documented() -> None:
    with web_server("127.0.0.1:1") as address:
        served = scrape(int(address.rpartition(":")[2]))
    shared = {
        f"statehouse_router_{name}"
        for name in ("denials_total", "unusable_security_files_total", "security_files_age_seconds")
    }
    listed = documented("http") | {name: each for name, each in documented("router").items() if name in shared}
    assert {
        f"{name}_total" if family.type == "counter" else name: family.type for name, family in served.families.items()
    } == {name: each.kind for name, each in listed.items()}
    assert served.value("statehouse_http_connections") == 1, "the scrape's own"


def answers(process: ServerProcess) -> bool:
    try:
        return process.get("a").found
    except LookupFailure:
        return False


def test_faults_and_their_outcomes_are_documented() -> None:
    page = PAGE.read_text()
    assert [each.value for each in (*Fault, *FaultOutcome) if f"`{each.value}`" not in page] == []


@pytest.mark.feature("metric-page-one")
def test_processor_s_metrics_are_documented() -> None:
    metrics = ProcessorMetrics()
    of_query = {("", "not_json"): 2, ("", "skipped"): 4, ("", "retried"): 2}
    counts = Counter({("boards", "changelog"): 3, ("boards", "bytes"): 70} | of_query)
    metrics.batch("scores", 7, counts, 0.25)
    metrics.progress(BatchProgress.parse(progress_json()))
    metrics.states.restarted("boards")
    listeners = ProcessorListeners()
    states = ProcessorStates(listeners)
    metrics.states.watch(states, listeners)
    states.declare(["boards"])
    metrics.states.on_application_state(ApplicationState.CREATED, ApplicationState.STARTING)
    metrics.states.on_query_state("boards", QueryState.CREATED, QueryState.RUNNING)
    metrics.states.on_controller_state(ControllerState.CREATED, ControllerState.STARTING)
    assert scrape_registry(metrics.registry).value("statehouse_processor_query_state", query="boards") == 1
    paused = scrape_registry(metrics.registry).value("statehouse_processor_backoffs_total", cause="sink_partition")
    assert paused == 2
    assert_documented(scrape_registry(metrics.registry), "processor")
