"""The real program sends lookups to at least one node in this process."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health import HealthServicer
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_status import rpc_status

from statehouse.errors import LookupFailure, Reason
from statehouse.errors.statuses import to_status
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.robustness.history import ANY, AT_LEAST, MAX_LAG, History, LookupRecord, Recorder
from tests.robustness.sender import Sender
from tests.robustness.traffic import BOUNDS, Keys, Traffic
from tests.support.fleet import STORE
from tests.support.polling import poll_until
from tests.support.secured import Keys as Certificates
from tests.support.secured import uri

RATE = 250
KEYS = Keys(("key-0", "key-1", "key-2"), ("absent-0",))
PARTITIONS = {"key-0": 0, "key-1": 1, "key-2": 0, "absent-0": 1}
REFUSED = LookupFailure(Reason.LAG_EXCEEDS_BOUND, "too far behind")


class Node(query_service_pb2_grpc.QueryServiceServicer):
    """Answers with positions that grow, but to who asks for a largest lag; the first call waits for `thaws`."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.received: list[tuple[float, query_service_pb2.GetRequest]] = []
        self.shown: set[bytes] = set()
        self.thaws = threading.Event()
        self.thaws.set()
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8))
        query_service_pb2_grpc.add_QueryServiceServicer_to_server(self, self._server)
        self.health = HealthServicer()
        add_HealthServicer_to_server(self.health, self._server)
        address = "127.0.0.1:0"
        port = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    def Get(self, request: query_service_pb2.GetRequest, context: Any) -> query_service_pb2.GetResponse:  # noqa: N802 - the service's name
        with self._lock:
            self.received.append((time.monotonic(), request))
            self.shown.update(context.auth_context().get("x509_subject_alternative_name", ()))
            number = len(self.received)
        if number == 1:
            self.thaws.wait()
        if request.freshness.HasField("max_lag"):
            context.abort_with_status(rpc_status.to_status(to_status(REFUSED)))
        found = request.key.text in KEYS.existing
        return query_service_pb2.GetResponse(
            found=found,
            value=types_pb2.Value(text=str(number)) if found else None,
            replica=types_pb2.ReplicaStamp(role=types_pb2.REPLICA_ROLE_ACTIVE, position=number),
        )

    def BatchGet(  # noqa: N802 - the service's name
        self, request: query_service_pb2.BatchGetRequest, context: Any
    ) -> query_service_pb2.BatchGetResponse:
        return query_service_pb2.BatchGetResponse(
            results=[query_service_pb2.BatchGetResult(response=self.Get(each, context)) for each in request.requests]
        )

    def stop(self) -> None:
        self.thaws.set()
        self._server.stop(None).wait()


@pytest.fixture
def node() -> Iterator[Node]:
    # Only Get and BatchGet are called.
    made = Node()  # type: ignore[abstract]
    yield made
    made.stop()


@pytest.fixture
def other() -> Iterator[Node]:
    made = Node()  # type: ignore[abstract]
    yield made
    made.stop()


@dataclass
class Sent:
    """What was recorded of lookups, by when they were due, and when each came to the node; in seconds of the run."""

    lookups: list[LookupRecord]
    arrivals: list[float]


def _send(
    node: Node, directory: Path, *bounds: str, routers: tuple[str, ...] = (), count: int = 100, **options: Any
) -> Sent:
    """Send so many lookups to the node at least, and a share to other routers; then let all end."""
    path = directory / "history.jsonl"
    targets = {f"r{number}": target for number, target in enumerate((node.target, *routers))}
    with (
        Recorder(path) as recorder,
        Traffic(targets, KEYS, PARTITIONS.__getitem__, RATE, recorder, bounds, **options) as traffic,
    ):

        def is_enough() -> bool:
            traffic.require_running()
            return len(node.received) >= count

        poll_until(is_enough, 20, "lookups")
        node.thaws.set()
    lookups = sorted(History.load(path).lookups, key=lambda lookup: lookup.due_at)
    return Sent(lookups, [recorder.at(at) for at, _request in node.received])


def test_clients_take_turns_at_a_steady_rate(node: Node, tmp_path: Path) -> None:
    sent = _send(node, tmp_path, *BOUNDS)
    assert len(sent.lookups) == len(sent.arrivals), "each has a record, and has come to an end"
    for before, after in pairwise(sent.lookups):
        assert after.due_at - before.due_at == pytest.approx(1 / RATE, abs=1e-6)
    assert [lookup.bound for lookup in sent.lookups] == [BOUNDS[nth % 8] for nth in range(len(sent.lookups))]
    keys = defaultdict(list)
    for lookup in sent.lookups:
        assert lookup.partition == PARTITIONS[lookup.key]
        keys[lookup.client].append(lookup.key)
    assert {taken[0] for taken in keys.values()} == set(KEYS.all), "they begin apart"
    for taken in keys.values():
        first = KEYS.all.index(taken[0])
        assert taken == [KEYS.all[(first + nth) % len(KEYS.all)] for nth in range(len(taken))]


def test_the_time_is_counted_from_when_a_lookup_was_due_by_pythons_clock(node: Node, tmp_path: Path) -> None:
    sent = _send(node, tmp_path, ANY)
    ends = sorted(lookup.done_at for lookup in sent.lookups)
    for lookup, arrived_at, ended_at in zip(sent.lookups, sent.arrivals, ends, strict=True):
        assert lookup.due_at <= arrived_at <= ended_at


def test_lookups_go_on_while_one_has_no_answer(node: Node, tmp_path: Path) -> None:
    node.thaws.clear()
    sent = _send(node, tmp_path, ANY, count=50)
    *others, held = sorted(sent.lookups, key=lambda each: each.done_at)
    assert held.answered
    assert held.done_at > sent.arrivals[49] > others[0].done_at


def test_positions_asked_for_are_those_that_the_client_has_seen(node: Node, tmp_path: Path) -> None:
    lookups = _send(node, tmp_path, AT_LEAST, ANY, AT_LEAST).lookups
    asked = [request.freshness.at_least.positions for _at, request in node.received]
    assert all(entry.store == STORE for positions in asked for entry in positions)
    assert sorted((entry.partition, entry.position) for positions in asked for entry in positions) == sorted(
        (lookup.partition, lookup.at_least) for lookup in lookups if lookup.at_least is not None
    )
    assert any(lookup.at_least for lookup in lookups)
    for lookup in lookups:
        seen = [each for each in lookups if (each.client, each.partition) == (lookup.client, lookup.partition)]
        known = [each.position or 0 for each in seen if each.done_at <= lookup.due_at]
        if lookup.bound == ANY:
            assert lookup.at_least is None
        elif lookup.at_least is None:
            assert not known
        else:
            assert lookup.at_least in [each.position for each in seen]
            assert lookup.at_least >= max(known, default=0)


def test_batches_ask_for_keys_in_turn_and_for_the_positions_seen(node: Node, tmp_path: Path) -> None:
    sent = _send(node, tmp_path, AT_LEAST, batch=3)
    assert len(sent.lookups) == len(sent.arrivals), "each has a record, and has come to an end"
    taken = [lookup for lookup in sent.lookups if lookup.client == f"c2-{AT_LEAST}"]
    first = KEYS.all.index(taken[0].key)
    assert [lookup.key for lookup in taken] == [KEYS.all[(first + nth) % len(KEYS.all)] for nth in range(len(taken))]
    assert {each.due_at for each in taken[:3]} == {taken[0].due_at} < {each.due_at for each in taken}
    assert {lookup.at_least for lookup in taken[-3:]} <= {each.position for each in taken}
    single = [lookup for lookup in sent.lookups if lookup.client != taken[0].client]
    assert len(single) == pytest.approx(len(taken) / 3, abs=1)


def test_failures_come_with_their_reason(node: Node, tmp_path: Path) -> None:
    nobody = "127.0.0.1:1"
    lookups = _send(node, tmp_path, ANY, ANY, MAX_LAG, ANY, routers=(nobody,)).lookups
    came = {(lookup.router, lookup.bound, lookup.reason) for lookup in lookups}
    assert came == {("r0", ANY, ""), ("r0", MAX_LAG, "LAG_EXCEEDS_BOUND"), ("r1", ANY, "UNREACHABLE")}
    assert {lookup.message for lookup in lookups if lookup.bound == MAX_LAG} == {REFUSED.message}


def test_routers_of_one_target_take_turns_and_each_answer_says_whose_it_is(
    node: Node, other: Node, tmp_path: Path
) -> None:
    lookups = _send(node, tmp_path, ANY, routers=(other.target,), together=True).lookups
    assert all(lookup.answered for lookup in lookups)
    more = [
        len(router.received) - sum(lookup.router == name for lookup in lookups)
        for name, router in (("r0", node), ("r1", other))
    ]
    # A late lookup is sent to the other, too, and each of them may have had one under way at the end.
    late = sum(lookup.took_s >= 0.25 for lookup in lookups)
    assert all(0 <= each <= late + 1 for each in more)
    assert abs(len(node.received) - len(other.received)) <= len(lookups) / 4


@pytest.mark.feature("router-killed-started")
def test_a_lookup_at_a_frozen_router_is_soon_sent_to_the_other(node: Node, other: Node, tmp_path: Path) -> None:
    other.thaws.clear()  # its first call waits, until the end
    sent = _send(node, tmp_path, ANY, routers=(other.target,), together=True)
    assert all(lookup.answered for lookup in sent.lookups)
    assert [lookup for lookup in sent.lookups if 0.25 <= lookup.took_s < 2.5]


def test_a_router_that_is_gone_costs_no_lookup(node: Node, other: Node, tmp_path: Path) -> None:
    other.stop()
    lookups = _send(node, tmp_path, ANY, routers=(other.target,), together=True).lookups
    assert {lookup.router for lookup in lookups if lookup.answered} == {"r0"}
    assert all(lookup.answered for lookup in lookups)


@pytest.mark.feature("router-killed-started")
def test_a_router_that_says_it_is_not_ready_is_left_out(node: Node, other: Node, tmp_path: Path) -> None:
    other.health.set("", HealthCheckResponse.NOT_SERVING)
    lookups = _send(node, tmp_path, ANY, routers=(other.target,), together=True).lookups
    assert {lookup.router for lookup in lookups} == {"r0"}
    assert not other.received


def test_the_readers_certificate_is_shown(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    server = certificates.issued["router"]
    credentials = grpc.ssl_server_credentials(
        [(server.key_path.read_bytes(), server.certificate_path.read_bytes())],
        certificates.authority.path.read_bytes(),
        require_client_auth=True,
    )
    node = Node(credentials)  # type: ignore[abstract]
    try:
        lookups = _send(node, tmp_path, ANY, certificates=certificates).lookups
    finally:
        node.stop()
    assert all(lookup.answered for lookup in lookups)
    assert uri("reader").encode() in node.shown


def _see_the_end(of: Traffic | Sender) -> None:
    poll_until(of.require_running, 20, "the end to be seen")


def _kill(traffic: Traffic) -> None:
    traffic._sender._process.kill()
    _see_the_end(traffic)


def test_a_sender_that_dies_is_an_error(node: Node, tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        traffic = Traffic({"r": node.target}, KEYS, PARTITIONS.__getitem__, RATE, recorder)
        with pytest.raises(AssertionError, match="ended with -9"), traffic:
            _kill(traffic)


def test_a_plan_that_makes_no_sense_is_an_error() -> None:
    sender = Sender({}, print, 1.0)
    with pytest.raises(AssertionError, match=r"ended with 1: .*the plan has no clients"), sender:
        _see_the_end(sender)


def test_an_outcome_that_cannot_be_read_is_an_error(node: Node, tmp_path: Path) -> None:
    def take(line: bytes) -> None:
        raise ValueError("not this one")

    with Recorder(tmp_path / "history.jsonl") as recorder:
        traffic = Traffic({"r": node.target}, KEYS, PARTITIONS.__getitem__, RATE, recorder)
        traffic._sender._take = take
        with pytest.raises(AssertionError, match="is no outcome: ValueError: not this one"), traffic:
            _see_the_end(traffic)
