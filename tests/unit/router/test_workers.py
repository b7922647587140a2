"""What several routers on one port are started with, and that nobody takes their port by mistake."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import cast
from unittest.mock import MagicMock

import grpc
import grpc.aio
import pytest

from router import child_processes
from router.child_processes import environment_of, keep
from router.workers import hold_port, settings_of_worker, worker_child
from statehouse.errors import ConfigurationError
from statehouse.local.ports import LOOPBACK
from statehouse.rpc.server import RpcServer
from statehouse.runtime.waiting import StopSignals
from statehouse.settings import RouterSettings, load


def _server(port: int, *, share_port: bool) -> RpcServer:
    return RpcServer(
        f"{LOOPBACK}:{port}",
        (),
        lambda _: None,
        settings=RouterSettings(application_id="tests"),
        proxy=None,
        proxied={},
        max_batch_entries=1_000,
        lasting_calls=0,
        gate=None,
        share_port=share_port,
    )


async def test_a_held_port_is_for_those_who_share_it() -> None:
    with hold_port(LOOPBACK, 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ConfigurationError, match="another process on that port"):
            hold_port(LOOPBACK, port)
        with pytest.raises(ConfigurationError, match="another process on that port"):
            _server(port, share_port=False)
        workers = [_server(port, share_port=True) for _ in range(2)]
        for worker in workers:
            await worker.start()
        with pytest.raises(ConfigurationError, match="another process on that port"):
            hold_port(LOOPBACK, port)
        async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
            await channel.channel_ready()
        for worker in workers:
            await worker.stop(0.0)
    with hold_port(LOOPBACK, port):  # the connections that have just ended don't matter
        pass


async def test_workers_take_no_port_of_a_router_that_is_alone() -> None:
    alone = _server(0, share_port=False)
    await alone.start()
    with pytest.raises(ConfigurationError, match="another process on that port"):
        hold_port(LOOPBACK, alone.port)
    await alone.stop(0.0)


def test_an_address_that_is_not_ours_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="can't listen on"):
        hold_port("192.0.2.1", 0)


@pytest.mark.feature("several-router-processes")
def test_workers_share_a_port_and_have_a_metrics_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = RouterSettings(
        application_id="app", workers=3, metrics_port=9_100, hold_window_ms=0, express=False, router_rack="r1"
    )
    workers = [settings_of_worker(settings, number, 7_200) for number in range(3)]
    assert [worker.metrics_port for worker in workers] == [9_100, 9_101, 9_102]
    assert {(worker.router_port, worker.workers) for worker in workers} == {(7_200, 1)}
    ours = {"STATEHOUSE_ROUTER_PORT": "1", "STATEHOUSE_NODE_PORT": "2", "STATEHOUSE_CONFIG": "/none", "PATH": "/bin"}
    environment = environment_of(workers[1], ours)
    assert environment["PATH"] == "/bin"
    for name in ours.keys() - {"PATH"}:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert load(RouterSettings, {}) == workers[1], "a worker reads what its parent was told, from wherever"


def test_without_metrics_workers_serve_none() -> None:
    settings = RouterSettings(application_id="app", workers=2)
    assert settings_of_worker(settings, 1, 7_200).metrics_port is None
    assert "STATEHOUSE_METRICS_PORT" not in environment_of(settings, {"STATEHOUSE_METRICS_PORT": "1"})


def test_metrics_ports_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="a port of its own"):
        load(RouterSettings, {"application_id": "app", "workers": 2, "metrics_port": 65_535})


def test_a_port_that_is_held_lets_no_connection_in() -> None:
    with hold_port(LOOPBACK, 0) as held, pytest.raises(ConnectionRefusedError):
        socket.create_connection(held.getsockname(), 5.0)


async def test_a_worker_that_can_not_be_started_now_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, tries = StopSignals(), 0

    async def no_memory(*_: object, **__: object) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            stop.now()
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_memory)
    await asyncio.wait_for(keep(worker_child(RouterSettings(application_id="app"), 0, 7_200), stop), 10)
    assert tries == 2


async def test_a_process_that_ends_just_before_it_is_killed_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "_STOP_TIMEOUT_S", 0.0)
    ended = asyncio.Event()

    class Process:
        """As asyncio's is when the event loop knows of the end, and the waiting task doesn't know it yet."""

        stdin = MagicMock()

        async def wait(self) -> int:
            await ended.wait()
            return 0

        def kill(self) -> None:
            ended.set()
            raise ProcessLookupError

    stop, process = StopSignals(), Process()
    stop.now()
    async with asyncio.timeout(20):
        await child_processes._ended(cast("asyncio.subprocess.Process", process), stop, 0.0)
