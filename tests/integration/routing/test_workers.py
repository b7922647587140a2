"""Two router processes on one port in front of a real node: one is killed and replaced, and all end together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
import pytest

from statehouse.errors import LookupFailure
from statehouse.local.errors import PortTaken
from statehouse.local.ports import ensure_free, free_port
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.proxy import children_of

REQUEST = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="a"))


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def two_free_ports() -> tuple[int, int]:
    """Return ports that follow each other."""
    while True:
        first = free_port()
        try:
            ensure_free(first + 1)
        except PortTaken:
            continue
        return first, first + 1


def lookup_on_a_new_connection(router: ServerProcess) -> bool:
    """Look a key up on a connection of its own: the kernel chooses a worker for each."""
    with grpc.insecure_channel(router.target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            return query_service_pb2_grpc.QueryServiceStub(channel).Get(REQUEST, timeout=5.0).found
        except grpc.RpcError:
            return False


def lookups_by_worker(metrics_ports: tuple[int, ...]) -> list[float]:
    try:
        return [scrape(port).value("statehouse_router_lookups_total", outcome="OK") for port in metrics_ports]
    except OSError:
        return []


def all_answer(router: ServerProcess, metrics_ports: tuple[int, ...]) -> bool:
    lookup_on_a_new_connection(router)
    counts = lookups_by_worker(metrics_ports)
    return len(counts) == len(metrics_ports) and all(counts)


@pytest.mark.feature("several-router-processes")
def test_one_worker_dies_and_is_replaced_and_all_end_with_their_parent(fleet: Fleet) -> None:
    metrics_ports = two_free_ports()
    router = fleet.router(workers=2, metrics_port=metrics_ports[0])
    poll_until(lambda: all_answer(router, metrics_ports), 60, "both workers to answer")
    workers = children_of(router.pid)
    assert len(workers) == 2
    alone = fleet.router("alone", port=router.port)
    assert alone.wait() == 2, "who takes the port by mistake is refused"
    more = fleet.router("more", port=router.port, workers=2)
    assert more.wait() == 2
    assert "another process on that port" in alone.log
    assert "another process on that port" in more.log

    victim = min(workers)
    assert router.get("a").found
    os.kill(victim, signal.SIGKILL)
    poll_until(lambda: router_answers(router), 30, "lookups on a connection that may have been the dead one's")
    # The worker that takes its place listens before it knows the fleet.
    poll_until(lambda: lookup_on_a_new_connection(router), 30, "a lookup on a new connection")
    poll_until(lambda: len(children_of(router.pid) - workers) == 1, 30, "another in its place")
    poll_until(lambda: all_answer(router, metrics_ports), 60, "both workers to answer again")

    workers = children_of(router.pid)
    assert router.stop(signal.SIGTERM) == 0
    assert not any(map(is_alive, workers))


def router_answers(router: ServerProcess) -> bool:
    try:
        return router.get("a").found
    except LookupFailure:
        return False


def test_workers_end_with_a_parent_that_is_killed(fleet: Fleet) -> None:
    router = fleet.router("orphaned", workers=2)
    poll_until(lambda: lookup_on_a_new_connection(router), 60, "a worker to answer")
    workers = children_of(router.pid)
    router.kill()
    poll_until(lambda: not any(map(is_alive, workers)), 30, "the workers to end")


def test_workers_that_cannot_run_end_the_whole(fleet: Fleet) -> None:
    taken = fleet.processes[0].port
    router = fleet.router("refused", workers=2, metrics_port=taken)
    assert router.wait() == 2
    assert "can't serve metrics" in router.log
    assert "worker 0 can't run with these settings" in router.log
