"""Anything that a caller sends to any RPC gets an answer or a clean refusal, and leaves nothing behind."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import DOMAIN, LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.integration.fuzz.messages import Fuzzer, Method, methods_of
from tests.support.fleet import STORE, ServerProcess
from tests.support.metrics import Scrape, scrape
from tests.support.polling import poll_until
from tests.support.stores_fleet import KINDS, NAMES, StoresFleet

PACKAGE: Final = "statehouse.v1"
DRAIN: Final = "/statehouse.v1.NodeService/Drain"
AT_ONCE: Final = 8
# One that is not answered in time is asked again with more: what isn't answered then hangs.
PATIENCE_S: Final = (1.0, 20.0)
WATCHED_S: Final = 0.3
# Long enough to be noticed if they were kept, and for the answer to be refused.
KEY_BYTES: Final = 300_000
MOST_GROWTH_BYTES: Final = 64 * 1024 * 1024
# gRPC itself refuses these, before the request has come to us.
_BY_GRPC: Final = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED}
_OPEN: Final = {
    "node": ("open_iterators", "open_scans", "open_watches", "position_waits"),
    "router": ("open_lookups", "open_watches", "open_fleet_watches"),
}


@dataclass(frozen=True)
class Target:
    """A process under fire, and where its metrics are."""

    process: ServerProcess
    kind: str
    metrics_port: int

    def metrics(self) -> Scrape:
        return scrape(self.metrics_port)

    @property
    def open(self) -> dict[str, float]:
        """What is open in it; nothing, when nobody asks anything."""
        metrics = self.metrics()
        return {name: metrics.value(f"statehouse_{self.kind}_{name}") for name in _OPEN[self.kind]}

    @property
    def memory_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@dataclass(frozen=True)
class Targets:
    fleet: StoresFleet
    router: Target
    node: Target
    spare: Target

    @property
    def all(self) -> tuple[Target, ...]:
        return self.router, self.node


@pytest.fixture(scope="module")
def targets(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Targets]:
    directory = tmp_path_factory.mktemp("fuzz")
    with StoresFleet(kafka.bootstrap, f"fuzz-{uuid.uuid4().hex[:8]}", directory) as fleet:
        fleet.assign(TaskAssignment("a", ("b",)), TaskAssignment("a"))

        def started(kind: str, start: Callable[..., ServerProcess], name: str) -> Target:
            port = free_port()
            return Target(start(name, metrics_port=port), kind, port)

        node, spare = started("node", fleet.node, "a"), started("node", fleet.node, "b")
        router = started("router", fleet.router, "router")
        fleet.wait_running([node.process, spare.process])
        poll_until(lambda: all(answers(router.process, name) for name in NAMES), 30, "the router")
        yield Targets(fleet, router, node, spare)


def answers(process: ServerProcess, key: str) -> bool:
    try:
        return process.get(key).found
    except LookupFailure:
        return False


def tokens(router: ServerProcess) -> list[str]:
    """Return page tokens that are good for something."""
    scans = [query_service_pb2.ScanRequest(store=STORE, page_size=size) for size in (1, 2)]
    windows = query_service_pb2.ScanWindowsRequest(store="clicks", page_size=1)
    pages = [ServerProcess.call(router.query.Scan, scan) for scan in scans]
    pages.append(ServerProcess.call(router.query.ScanWindows, windows))
    history = query_service_pb2.GetHistoryRequest(store="prices", key=types_pb2.Key(text="ann"), page_size=1)
    pages.append(ServerProcess.call(router.query.GetHistory, history))
    return [page.next_page_token for page in pages]


def sent(process: ServerProcess, method: Method, bodies: Iterable[bytes], timeout_s: float) -> None:
    """Send messages to an RPC as a stream that we then close, and read what comes back, but not for ever."""
    call = process.channel.stream_stream(method.path)(iter(bodies), timeout=timeout_s, wait_for_ready=True)
    for heard, _ in enumerate(call):
        if heard > 20:
            call.cancel()
            return


def wrong(process: ServerProcess, method: Method, bodies: list[bytes]) -> str:
    """Send a call; return what is wrong with how it ended, nothing for a good end."""
    for timeout_s in (WATCHED_S,) if method.is_streaming else PATIENCE_S:
        try:
            sent(process, method, bodies, timeout_s)
        except grpc.RpcError as error:
            code = error.code()
            if code is grpc.StatusCode.CANCELLED:
                return ""
            info = reason_of(error)
            if info is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
                if method.is_streaming:  # a watch goes on until its caller leaves
                    return ""
                continue
            if code in {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN} or (info is None and code not in _BY_GRPC):
                return f"{method.path} {process.name}: {code} {error.details()} for {[body[:60] for body in bodies]}"
        return ""
    return f"{method.path} {process.name}: no answer for {[body[:60] for body in bodies]}"


def reason_of(error: Any) -> str | None:
    """Return the reason that one of our servers gave."""
    status = rpc_status.from_call(error)
    for detail in () if status is None else status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return info.reason
    return None


def fuzz(target: Target, fuzzer: Fuzzer, count: int, *, leave_out: frozenset[str]) -> list[str]:
    """Send so many messages to each RPC; return what went wrong."""
    methods = [method for method in methods_of(target.process.channel, PACKAGE) if method.path not in leave_out]
    calls = [(method, [body]) for method in methods for body in fuzzer.messages(method, count)]
    for method in methods:  # closed before anything was sent, or with more than was to come
        calls += [(method, []), (method, list(fuzzer.messages(method, 2)))]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        ends = threads.map(lambda call: wrong(target.process, *call), calls)
        return [end for end in ends if end]


@pytest.mark.parametrize("count", [16, pytest.param(2_000, marks=pytest.mark.long)])
def test_every_rpc_answers_or_refuses_cleanly_and_leaves_nothing_open(targets: Targets, count: int) -> None:
    texts = [STORE, *KINDS, *NAMES]
    fuzzer = partial(Fuzzer, texts=texts, tokens=tokens(targets.router.process), longest_key=KEY_BYTES)
    leave_out = frozenset({DRAIN})  # any message that can be read is a good one, and ends the node
    failures = [each for target in targets.all for each in fuzz(target, fuzzer(1), count, leave_out=leave_out)]
    assert not failures, "\n".join(failures[:20])
    known = [target.memory_bytes for target in targets.all]
    for target in targets.all:
        poll_until(
            lambda target=target: not any(target.open.values()), 30, f"{target.process.name} to have nothing open"
        )
    failures = [each for target in targets.all for each in fuzz(target, fuzzer(2), count, leave_out=leave_out)]
    assert not failures, "\n".join(failures[:20])
    for target, before in zip(targets.all, known, strict=True):
        poll_until(
            lambda target=target: not any(target.open.values()), 30, f"{target.process.name} to have nothing open"
        )
        assert target.memory_bytes < before + MOST_GROWTH_BYTES
        assert "Traceback" not in target.process.log, target.process.log[-3000:]
    assert all(answers(targets.router.process, name) for name in NAMES)


def test_who_leaves_in_the_middle_leaves_nothing_open(targets: Targets) -> None:
    targets.fleet.wait_running([targets.node.process])  # it may have been asked to restore a store anew
    for target in targets.all:
        stub, channel = target.process.query, target.process.channel
        calls = [stub.Watch(query_service_pb2.WatchRequest(store=STORE, partition=0)) for _ in range(5)]
        if target.kind == "router":
            calls += [target.process.fleet.WatchFleet(fleet_service_pb2.WatchFleetRequest()) for _ in range(5)]
        poll_until(lambda target=target: sum(target.open.values()) >= 5, 30, "the watches to be open")
        calls += [channel.stream_stream("/statehouse.v1.QueryService/Scan")(iter(())) for _ in range(5)]
        for call in calls:
            call.cancel()
        poll_until(lambda target=target: not any(target.open.values()), 30, "nothing to be open")
        assert "Traceback" not in target.process.log, target.process.log[-3000:]


def test_only_what_can_be_read_drains_a_node(targets: Targets) -> None:
    node = targets.spare.process
    drain = next(method for method in methods_of(node.channel, PACKAGE) if method.path == DRAIN)
    assert not wrong(node, drain, [b"\xff\xff\xff"])
    assert not wrong(node, drain, [])
    assert node.node().state == "RUNNING"
