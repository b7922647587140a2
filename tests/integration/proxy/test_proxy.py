"""The real proxy in front of a server in this process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import struct
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.link.link import VERSION, CallFailed, FromProxy, ToProxy, first_frame, frame
from statehouse.link.proxy import Proxy, ProxyEnded, ProxyLimits, find_program
from statehouse.local.ports import LOOPBACK, free_port
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from tests.integration.proxy.served import (
    BATCH_GET,
    BOUNDS,
    GET,
    MAX_BYTES,
    SCAN,
    SERVICE,
    TWICE,
    call,
    reason,
    served,
    set_within,
    until,
)
from tests.support.proxy import PROXY


@pytest.mark.feature("optional-proxy-go")
async def test_lookups_are_answered_over_the_link() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        assert await call(at, GET, b"abc", timeout_s=60.0) == [b"cba"]
        ((_, remaining_s),) = it.asked
        assert remaining_s is not None
        assert 30.0 < remaining_s <= 60.1  # gRPC sends the caller's time in tenths of a second, rounded up
        it.may_go_on.set()
        assert await asyncio.gather(*(call(at, BATCH_GET, b"%03d" % each) for each in range(300))) == [
            [(b"%03d" % each)[::-1]] for each in range(300)
        ]
        for path in (GET, SCAN):
            refusal = await call(at, path, b"no")
            assert isinstance(refusal, LookupFailure)
            assert (refusal.reason, refusal.message, refusal.metadata) == (
                Reason.UNKNOWN_STORE,
                "no such store",
                {"store": "s"},
            )


@pytest.mark.parametrize("method", ["Scan", "ScanWindows", "ScanSessions"])
async def test_pages_are_answered_over_the_link(method: str) -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        it.may_go_on.set()
        path = f"/statehouse.v1.QueryService/{method}"
        assert await asyncio.gather(*(call(at, path, b"%03d" % each) for each in range(100))) == [
            [(b"%03d" % each)[::-1]] for each in range(100)
        ]


async def test_lookups_dont_wait_for_pages() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        pages = [asyncio.ensure_future(call(at, SCAN, b"%03d" % each)) for each in range(100)]
        await set_within(it.arrived)
        assert await call(at, GET, b"abc") == [b"cba"]
        it.may_go_on.set()
        assert await asyncio.gather(*pages) == [[(b"%03d" % each)[::-1]] for each in range(100)]


async def test_a_call_without_a_deadline_has_none() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        await at.unary_unary(GET)(b"x")
        assert it.asked == [(b"x", None)]


@pytest.mark.feature("optional-proxy-go")
async def test_all_else_is_passed_on() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        assert await call(at, f"/{SERVICE}/Twice", b"abc") == [b"abc", b"abc"]
        refusal = await call(at, f"/{SERVICE}/Twice", b"no")
        assert isinstance(refusal, LookupFailure)
        assert (refusal.reason, refusal.message, refusal.metadata) == (
            Reason.NOT_ACTIVE,
            "not here",
            {"partition": "3"},
        )
        for path in (GET, SCAN, f"/{SERVICE}/Twice"):
            assert await reason(at, path) is Reason.INVALID_REQUEST, "without a request"

        it.server.health.set(serving=True, ready=True)
        health = health_pb2_grpc.HealthStub(at)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        listed = [each async for each in reflection_pb2_grpc.ServerReflectionStub(at).ServerReflectionInfo(asked)]
        assert SERVICE in {each.name for each in listed[0].list_services_response.service}


@pytest.mark.parametrize("path", [BATCH_GET, SCAN])
async def test_who_leaves_is_not_worked_for(path: str) -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        waiting = asyncio.ensure_future(at.unary_unary(path)(b"x"))
        await set_within(it.arrived)
        waiting.cancel()
        await set_within(it.left)


@pytest.mark.parametrize("path", [BATCH_GET, SCAN, f"/{SERVICE}/Endless"])
async def test_a_deadline_that_passes_is_told_as_such(path: str) -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        reasons = [await reason(at, path, b"x", timeout_s=timeout_s) for timeout_s in (0.1, 0.123456, 0.2) * 3]
        assert set(reasons) == {Reason.ATTEMPT_TIMED_OUT}
        await set_within(it.left)


@pytest.mark.parametrize("path", [GET, f"/{SERVICE}/Twice"])
async def test_messages_have_a_largest_size(path: str) -> None:
    async with served() as it, channel(it.target, 4 * MAX_BYTES) as at:
        assert await reason(at, path, b"x" * (MAX_BYTES + 1)) is Reason.MESSAGE_TOO_LARGE
        answers = await call(at, path, b"x" * MAX_BYTES)
        assert isinstance(answers, list)
        assert {len(each) for each in answers} == {MAX_BYTES}


@pytest.mark.feature("callers-ask-bounded")
@pytest.mark.parametrize(
    "bounds",
    [
        replace(BOUNDS, max_connections=2),
        replace(BOUNDS, max_connections_per_address=2),
        # As many as are left for others.
        replace(BOUNDS, max_connections=4, max_connections_per_address=0),
    ],
)
async def test_connections_beyond_the_bounds_are_closed_and_cost_the_others_nothing(bounds: ProxyLimits) -> None:
    async with served(bounds=bounds) as it, AsyncExitStack() as stack:
        at = await stack.enter_async_context(channel(it.target, MAX_BYTES))
        assert await call(at, GET, b"abc") == [b"cba"]
        host, port = it.target.split(":")
        kept_reader, kept = await asyncio.open_connection(host, int(port))
        stack.callback(kept.close)
        for _ in range(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            with suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 10) == b"", "closed without a word"
            writer.close()
        assert await call(at, GET, b"abc") == [b"cba"]
        kept.close()
        assert await asyncio.wait_for(kept_reader.read(), 10) is not None
        other = await stack.enter_async_context(channel(it.target, MAX_BYTES))
        await until(lambda: call(other, GET, b"abc"), lambda outcome: outcome == [b"cba"])


async def test_headers_have_a_largest_size() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        made = at.stream_stream(GET)(cast("Any", iter([b"abc"])), timeout=20, metadata=(("x-long", "x" * 100_000),))
        with pytest.raises(grpc.aio.AioRpcError):
            assert [data async for data in made]
        # The proxy may have ended the connection, too.
        await until(lambda: call(at, GET, b"abc"), lambda outcome: outcome == [b"cba"])


async def test_the_proxy_has_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_SECRET", "hush")
    async with served() as it:
        environment = Path(f"/proc/{it.proxy.pid}/environ")
        assert await asyncio.to_thread(environment.read_bytes) == b""


async def test_what_is_under_way_at_the_end_is_answered() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        under_way = asyncio.ensure_future(call(at, BATCH_GET, b"ab"))
        await set_within(it.arrived)
        stopped = asyncio.ensure_future(it.server.stop(10.0))
        await until(lambda: call(at, GET, b"x"), lambda outcome: outcome != [b"x"])
        assert await reason(at, GET, b"x") is Reason.UNREACHABLE
        it.may_go_on.set()
        assert await under_way == [b"ba"]
        await stopped
        assert not it.broken


async def test_without_its_proxy_a_server_is_told() -> None:
    async with served() as it:
        told = asyncio.Event()
        it.proxy._on_broken = lambda error: (it.broken.append(error), told.set())
        os.kill(it.proxy.pid, signal.SIGKILL)
        await set_within(told)
        assert [type(error) for error in it.broken] == [ProxyEnded]


async def test_a_taken_port_is_an_error() -> None:
    async with served() as it:
        with pytest.raises(ConfigurationError, match="another process on that port"):
            async with served(it.server.port):
                pass


@pytest.mark.parametrize(
    ("program", "message"), [("/bin/true", "does not say where it listens"), ("/", "can't be run")]
)
async def test_another_program_is_an_error(program: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Proxy(program, f"{LOOPBACK}:0", pytest.fail, BOUNDS, share_port=False)


async def test_a_program_of_another_version_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "older"
    # Before there were versions: the port, and nothing else.
    listening = struct.pack(">IBQ", 9, FromProxy.LISTENING, 7100)
    program.write_text(f"#!{sys.executable}\nimport os\nos.write(0, {listening!r})\n")
    program.chmod(0o700)
    with pytest.raises(ConfigurationError, match="another version than this package: build it again"):
        Proxy(str(program), f"{LOOPBACK}:0", pytest.fail, BOUNDS, share_port=False)


async def test_a_server_of_another_version_is_left(capfd: pytest.CaptureFixture[str]) -> None:
    async with served() as it:
        ours, its = socket.socketpair()
        options = ["-listen=127.0.0.1:0", f"-server={it.proxy.target}", *BOUNDS.options()]
        with its, ours:
            process = await asyncio.create_subprocess_exec(str(PROXY), *options, stdin=its.fileno(), env={})
            its.close()
            assert first_frame(ours.recv)[2] == VERSION
            ours.send(frame(ToProxy.SERVE, 0, b"\x01"))
            async with asyncio.timeout(10):
                assert await process.wait() == 1
    assert "of another version than this program: build it again" in capfd.readouterr().err


def _modes(path: Path) -> tuple[str, str]:
    """Return the kind of a file, and its folder's mode."""
    return stat.filemode(path.stat().st_mode)[0], stat.filemode(path.parent.stat().st_mode)


async def test_the_socket_behind_it_is_this_users_alone_and_goes_with_it() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        path = Path(it.proxy.target.removeprefix("unix:"))
        assert _modes(path) == ("s", "drwx------")
        assert path.parent.name.startswith(f"statehouse-{os.getpid()}-")
        assert await call(at, TWICE, b"abc") == [b"abc", b"abc"]
    assert not path.parent.exists()
    with pytest.raises(ConfigurationError):
        Proxy("/bin/true", f"{LOOPBACK}:0", pytest.fail, BOUNDS, share_port=False)
    assert not list(path.parent.parent.glob(f"statehouse-{os.getpid()}-*"))


def test_the_setting_says_which_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(PROXY.parent))
    assert find_program("auto") == find_program(str(PROXY)) == str(PROXY)
    assert find_program("none") is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_program("auto") is None
    with pytest.raises(ConfigurationError, match="there is no program /nowhere/it: set --proxy"):
        find_program("/nowhere/it")


async def test_calls_go_to_other_servers() -> None:
    async with served() as it, served() as other:
        link = it.proxy.link
        assert await link.call(other.target, GET, b"abc", 5.0) == b"cba"
        with pytest.raises(CallFailed) as failed:
            await link.call(other.target, GET, b"no", 5.0)
        failure = from_rpc_error(failed.value)
        assert (failure.reason, failure.metadata) == (Reason.UNKNOWN_STORE, {"store": "s"})
        with pytest.raises(CallFailed) as failed:
            await link.call(other.target, BATCH_GET, b"late", 0.2)
        assert from_rpc_error(failed.value).reason is Reason.ATTEMPT_TIMED_OUT
        await set_within(other.left)

        other.left.clear()
        waiting = asyncio.ensure_future(link.call(other.target, BATCH_GET, b"x", 20.0))
        other.arrived.clear()
        await set_within(other.arrived)
        waiting.cancel()
        await set_within(other.left)


async def test_a_server_that_comes_back_is_found_again() -> None:
    async with served() as it:
        link, port = it.proxy.link, free_port()

        async def asked() -> bytes | Reason:
            try:
                return await link.call(f"{LOOPBACK}:{port}", GET, b"ab", 5.0)
            except CallFailed as error:
                return from_rpc_error(error).reason

        for _ in range(2):
            assert await asked() is Reason.UNREACHABLE
            async with served(port):
                await until(asked, lambda outcome: outcome == b"ba")


async def test_a_connection_that_is_dropped_ends_after_its_grace() -> None:
    async with served() as it, served() as other:
        link = it.proxy.link
        under_way = asyncio.ensure_future(link.call(other.target, BATCH_GET, b"x", 20.0))
        await set_within(other.arrived)
        link.drop(other.target, 0.2)
        assert await link.call(other.target, GET, b"ab", 5.0) == b"ba"
        with pytest.raises(CallFailed):
            await under_way
        with suppress(CallFailed):  # a connection that isn't there can be dropped
            link.drop("127.0.0.1:1", 0.0)
        assert await link.call(other.target, GET, b"ab", 5.0) == b"ba"
