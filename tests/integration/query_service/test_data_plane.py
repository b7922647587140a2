"""Stores that the data plane holds: read from the log and kept as the others, whatever brokers ask for."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer

from query_service.inspect import stores_in
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.runtime.brokers import Brokers, SaslMechanism, SecurityProtocol
from statehouse.v1 import errors_pb2, node_service_pb2, node_service_pb2_grpc, query_service_pb2, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, confirmed, is_at_end
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.proxy import proxy_of
from tests.support.refusals import why_refused
from tests.support.secured_kafka import SecuredKafka

SAVES = 50
WORD = "s3cret/+=;:'$x"


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    everything = {"super.users": "User:ANONYMOUS;User:node"}
    with SecuredKafka(tmp_path_factory.mktemp("secured"), {"node": WORD}, everything) as kafka, kafka.issuer:
        yield kafka


def serving(fleet: Fleet, **options: object) -> ServerProcess:
    """Start a node whose data plane holds the store, and wait until it serves."""
    node = fleet.node("n1", **{"engine": "go", **options})
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([node])
    return node


def count(node: ServerProcess, *, exact: bool) -> int:
    request = query_service_pb2.CountRequest(store=STORE, partition=0, exact=exact)
    return int(node.call(node.query.Count, request).count)


def scanned(node: ServerProcess) -> dict[str, str]:
    page = node.call(node.query.Scan, query_service_pb2.ScanRequest(store=STORE, partition=0, page_size=1_000))
    return {entry.key.text: entry.value.text for entry in page.entries}


def restored_from(node: ServerProcess) -> int:
    """Return the position from which the store's log was read."""
    ((store,),) = (task.stores for task in node.node().tasks)
    return int(store.restored_from)


def is_followed(fleet: Fleet, node: ServerProcess, key: str, value: str) -> None:
    fleet.put({key: value})
    poll_until(lambda: node.get(key).value.text == value, 20, "the update to be followed")


def test_restores_follows_and_keeps_its_state(fleet: Fleet) -> None:
    entries = {f"key-{number:03}": str(number) for number in range(300)}
    fleet.put({**entries, "gone": "1"})
    fleet.put({"gone": None})
    node = serving(fleet)
    assert confirmed(node, "key-007").value.text == "7"
    assert node.get("gone").found is False
    assert scanned(node) == entries
    assert count(node, exact=True) == len(entries)
    is_followed(fleet, node, "key-007", "8")
    fleet.put({"gone": "2"})
    poll_until(lambda: count(node, exact=False) == len(entries) + 1, 20, "the new key to be counted")

    assert node.stop(signal.SIGINT) == 0
    node.start()
    fleet.wait_running([node])
    at = restored_from(node)
    assert at > len(entries), "it went on at its checkpoint"
    assert scanned(node) == {**entries, "key-007": "8", "gone": "2"}
    assert count(node, exact=True) == len(entries) + 1

    is_followed(fleet, node, "late", "1")
    program = proxy_of(node.pid)
    node.kill()
    # Its last word is in the log.
    poll_until(lambda: not Path(f"/proc/{program}").exists(), 20, "the program to end with its node")
    assert_inspected(fleet, at)
    node.start()
    fleet.wait_running([node])
    assert restored_from(node) >= at
    assert scanned(node) == {**entries, "key-007": "8", "gone": "2", "late": "1"}


def test_updates_are_followed_while_checkpoints_are_saved(fleet: Fleet) -> None:
    node = serving(fleet, checkpoint_interval_ms=20, metrics_port=(port := free_port()))
    producer = Producer({"bootstrap.servers": fleet.bootstrap, "linger.ms": 0})
    saves = 0.0
    for number in range(1, 10_000):
        producer.produce(fleet.changelog, key=b"a", value=str(number).encode(), partition=0)
        producer.flush(20)
        if number % 200 == 0:
            assert node.node(timeout=5).state == "RUNNING"
            saves = scrape(port).value("statehouse_node_flushes_total", store=STORE)
        if saves >= SAVES:
            break
    assert saves >= SAVES
    poll_until(lambda: node.get("a").value.text == str(number), 5, "the last update")


def assert_inspected(fleet: Fleet, at_least: int) -> None:
    """Assert that the store's files tell what they hold, and stay as they are."""
    before = {path: path.read_bytes() for path in fleet.directory.rglob("*") if path.is_file()}
    (found,) = stores_in(fleet.directory / "n1")
    assert found.position is not None
    assert found.position >= at_least
    assert (found.store, found.keys, found.note) == (STORE, 301, "")
    assert {path: path.read_bytes() for path in fleet.directory.rglob("*") if path.is_file()} == before


def test_plain_lookups_are_answered_without_python(fleet: Fleet) -> None:
    fleet.put({"a": "1", "b": "2"})
    node = serving(fleet, metrics_port=(port := free_port()))

    def counted(name: str, **labels: str) -> float:
        return scrape(port).value(f"statehouse_node_{name}", **labels)

    def calls(way: str) -> float:
        return counted("proxy_calls_total", way=way, code="OK")

    found = confirmed(node, "a")
    assert (found.value.text, found.replica.host.port) == ("1", node.port)
    poll_until(lambda: is_at_end(node.get("a").replica), 20, "the node to know the end of the log")
    poll_until(lambda: counted("proxy_stores_open") and calls("stores") + calls("link"), 20, "the calls so far")
    others = calls("link")
    before = calls("stores")
    for number in range(50):
        assert node.get("ab"[number % 2], max_lag=10, active_only=True).value.text == "12"[number % 2]
    assert node.get("absent").found is False
    lookups = [query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key)) for key in "ab"]
    traced = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="b"))
    traced.forwarding.traceparent = "00-1-1-00"  # Python's to answer
    unknown = query_service_pb2.GetRequest(store="unknown", key=types_pb2.Key(text="b"))
    batch = query_service_pb2.BatchGetRequest(requests=[lookups[0], traced, unknown, lookups[1]])
    results = node.call(node.query.BatchGet, batch).results
    assert [each.response.value.text for each in results] == ["1", "2", "", "2"]
    assert results[2].error.reason == errors_pb2.ERROR_REASON_UNKNOWN_STORE
    poll_until(lambda: calls("stores") >= before + 52, 20, "the calls")
    assert calls("link") == others

    def is_counted_once() -> bool:
        reads = counted("read_duration_seconds_count", store=STORE, role="ACTIVE", query="get")
        ((store,),) = (task.stores for task in node.node().tasks)
        return store.lookups == reads == others + calls("stores") - 1 + 3

    poll_until(is_counted_once, 20, "each lookup to be counted once, whoever answered")


def test_a_frozen_python_ends_the_answers(fleet: Fleet) -> None:
    fleet.put({"a": "1"})
    node = serving(fleet)
    assert confirmed(node, "a").found
    node.freeze_python()
    try:
        poll_until(lambda: not is_answered(node), 20, "the answers to end")
    finally:
        node.thaw()
    poll_until(lambda: is_answered(node), 20, "answers again")


def is_answered(node: ServerProcess) -> bool:
    try:
        return node.get("a", timeout=0.5).found
    except LookupFailure as failure:
        assert failure.reason is Reason.ATTEMPT_TIMED_OUT  # noqa: PT017 - nothing else is right
        return False


def test_a_watch_goes_on_from_what_a_scan_has_shown(fleet: Fleet) -> None:
    fleet.put({"a": "1"})
    node = serving(fleet)
    request = query_service_pb2.WatchRequest(store=STORE, partition=0)
    seen: list[str] = []
    call = node.query.Watch(request, timeout=30)
    for response in call:
        seen += [event.value.text for event in response.events]
        if seen and seen[-1] == "3":
            break
        if seen == ["1"] or not seen:
            fleet.put({"a": "2"})
            fleet.put({"a": "3"})
    call.cancel()
    assert seen[-1] == "3"


def test_files_of_one_engine_are_not_the_others(fleet: Fleet) -> None:
    fleet.put({"a": "1"})
    node = serving(fleet, engine="python")
    for engine in ("go", "python"):
        node.stop(signal.SIGINT)
        node = fleet.node("n1", engine=engine)
        fleet.wait_running([node])
        assert confirmed(node, "a").value.text == "1"
        assert restored_from(node) == 0, "it was restored anew"


def test_without_the_program_the_node_says_so(fleet: Fleet) -> None:
    node = fleet.node("n1", engine="go", proxy="none")
    assert node.wait() == 2
    assert "engine go needs statehouse-proxy" in node.log


@pytest.mark.parametrize(
    ("mechanism", "protocol"),
    [
        ("PLAIN", "sasl_ssl"),
        ("SCRAM-SHA-256", "sasl_plaintext"),
        ("SCRAM-SHA-512", "sasl_ssl"),
        ("OAUTHBEARER", "sasl_ssl"),
        (None, "ssl"),
    ],
)
def test_every_login_works(
    secured: SecuredKafka,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    mechanism: SaslMechanism | None,
    protocol: SecurityProtocol,
) -> None:
    secured.issuer.secrets["node"] = WORD
    brokers: Brokers
    if mechanism is None:
        brokers = secured.brokers_by_certificate(secured.ca.issue(["node"]))
    else:
        other = {"oauth_token_url": secured.issuer.url} if mechanism == "OAUTHBEARER" else {}
        brokers = secured.brokers("node", mechanism, protocol, **other)
    security = brokers.security
    given = {
        "bootstrap": brokers.bootstrap,
        "kafka_security_protocol": security.protocol,
        "kafka_sasl_mechanism": security.mechanism,
        "kafka_credentials": security.credentials,
        "kafka_oauth_token_url": security.oauth_token_url,
        "kafka_ca": security.ca,
        "kafka_certificate": security.certificate,
        "kafka_key": security.key,
    }
    with Fleet(secured.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        fleet.put({"a": "1"})
        node = serving(fleet, **{name: value for name, value in given.items() if value})
        assert confirmed(node, "a").value.text == "1"
        is_followed(fleet, node, "a", "2")


@pytest.mark.feature("node-profiled")
def test_a_node_is_profiled(fleet: Fleet, tmp_path: Path) -> None:
    node = serving(fleet)
    file = tmp_path / "found.pprof"

    def profile(kind: node_service_pb2.ProfileKind.ValueType, duration_ms: int = 200) -> str:
        request = node_service_pb2.ProfileRequest(kind=kind, duration_ms=duration_ms)
        file.write_bytes(node.call(node_service_pb2_grpc.NodeServiceStub(node.channel).Profile, request).profile)
        shown = ["go", "tool", "pprof", "-raw", str(file)]
        return subprocess.run(shown, check=True, capture_output=True, text=True, timeout=60).stdout

    assert "samples/count cpu/nanoseconds" in profile(node_service_pb2.PROFILE_KIND_CPU)
    assert "inuse_space/bytes" in profile(node_service_pb2.PROFILE_KIND_HEAP)
    assert "statehouse-dataplane/" in profile(node_service_pb2.PROFILE_KIND_GOROUTINES)
    assert why_refused(lambda: profile(node_service_pb2.PROFILE_KIND_UNSPECIFIED)) is Reason.INVALID_REQUEST
    assert why_refused(lambda: profile(node_service_pb2.PROFILE_KIND_CPU, 60_001)) is Reason.INVALID_REQUEST
    with ThreadPoolExecutor(2) as threads:  # one of them comes while the other is being made
        both = [threads.submit(why_refused, lambda: profile_of(node, 2_000)) for _ in range(2)]
        assert {each.result(30) for each in both} == {None, Reason.OVERLOADED}


def profile_of(node: ServerProcess, duration_ms: int) -> None:
    request = node_service_pb2.ProfileRequest(kind=node_service_pb2.PROFILE_KIND_CPU, duration_ms=duration_ms)
    node.call(node_service_pb2_grpc.NodeServiceStub(node.channel).Profile, request)


def test_a_node_without_a_data_plane_has_nothing_to_profile(fleet: Fleet) -> None:
    node = serving(fleet, engine="python")
    assert why_refused(lambda: profile_of(node, 100)) is Reason.INVALID_REQUEST
