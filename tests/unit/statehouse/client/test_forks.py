"""Clients and fork: each script runs in a process of its own, against a router in this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from textwrap import dedent

import pytest

from tests.support.fake_router import FakeRouter, fake_router

# `told(work)` is what comes of work that can't be done, and how long that took, in tenths of a second.
HEAD = """
import asyncio, multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
from statehouse.client import AsyncClient, Client
from statehouse.errors import UsageError

TARGET = sys.argv[1]

def told(work):
    began_at = time.monotonic()
    try:
        return work()
    except UsageError as error:
        assert time.monotonic() - began_at < 5, "it waited"
        return "forked" if "this process was forked from process" in str(error) else str(error)

def value(client):
    return client.get("boards", "1", timeout=10).value

def own(_=None):
    with Client(TARGET) as client:
        return value(client)

def in_child(work):
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print(told(work))
        sys.exit(0)  # not os._exit: the interpreter must come to its end, too
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
"""


@pytest.fixture(scope="module")
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {"1": 7}
        yield running


def run(router: FakeRouter, script: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", HEAD + dedent(script), router.target]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        pytest.param(
            """
            client = Client(TARGET)
            later = AsyncClient(TARGET)

            async def read():
                async with later:
                    return (await later.get("boards", "1")).value

            in_child(lambda: value(client))
            in_child(lambda: asyncio.run(read()))
            print(value(client), asyncio.run(read()))
            """,
            ["7", "7", "7", "7"],
            id="a client that was made before the fork works on both sides",
        ),
        pytest.param(
            """
            client = Client(TARGET)
            session, entries = client.session(), client.scan("boards")
            print(value(client), next(entries).key)
            in_child(lambda: value(client))
            in_child(lambda: value(session))
            in_child(lambda: next(entries))
            in_child(client.close)
            in_child(own)
            with client:
                if (pid := os.fork()) == 0:
                    sys.exit(0)  # leaves the block, and so closes the client
                assert os.waitpid(pid, 0)[1] == 0
                print(value(client))
            """,
            ["7", "1", "forked", "forked", "forked", "None", "forked", "7"],
            id="one that was in use says so, ends, and leaves the parent's alone",
        ),
        pytest.param(
            """
            print(own())
            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(*pool.map(own, range(2)))
            """,
            ["7", "7", "7"],
            id="one that was closed is none",
        ),
        pytest.param(
            """
            client = Client(TARGET)
            print(value(client))

            def use(_):
                return told(lambda: value(client))

            with multiprocessing.get_context("fork").Pool(2) as pool:
                print(*pool.map(use, range(2)))
            with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
                print(*pool.map(use, range(1)))
            """,
            ["7", "forked", "forked", "forked"],
            id="pools of processes",
        ),
        pytest.param(
            """
            import grpc
            channel = grpc.insecure_channel(TARGET)
            grpc.channel_ready_future(channel).result(10)
            client = Client(TARGET)
            in_child(lambda: value(client))
            in_child(own)
            """,
            ["forked", "forked"],
            id="gRPC in use by others",
        ),
        pytest.param(
            """
            client = AsyncClient(TARGET)

            async def read():
                return (await client.get("boards", "1")).value

            async def main():
                print(await read(), flush=True)  # else the child has it, too
                if (pid := os.fork()) == 0:
                    try:
                        await read()
                    except UsageError as error:
                        print("forked" if "forked" in str(error) else error, flush=True)
                    await client.close()
                    os._exit(0)
                assert os.waitpid(pid, 0)[1] == 0
                print(await read())

            asyncio.run(main())
            in_child(lambda: asyncio.run(read()))
            """,
            ["7", "forked", "7", "forked"],
            id="with an event loop",
        ),
        pytest.param(
            """
            client = Client(TARGET)
            client._calls._lock().acquire()  # by a thread that isn't there after the fork
            in_child(lambda: value(client))
            """,
            ["7"],
            id="a fork in the middle of the first use",
        ),
    ],
)
def test_forks(router: FakeRouter, script: str, printed: list[str]):
    assert run(router, script) == printed


def test_a_blocking_client_is_quiet_of_a_loop_that_ends(router: FakeRouter) -> None:
    """gRPC tells the loops that are left of a call of one that has ended; more often than not, there is such a call."""
    script = """
        client = Client(TARGET)

        async def read():
            async with AsyncClient(TARGET) as other:
                return (await other.get("boards", "1")).value

        print(value(client), asyncio.run(read()), value(client))
        """
    for _ in range(6):
        assert run(router, script) == ["7", "7", "7"]


def test_a_scan_that_nobody_reads_to_its_end_is_closed_with_the_client(router: FakeRouter) -> None:
    script = """
        for _ in range(100):
            with Client(TARGET) as client:
                next(client.scan("boards", page_size=1))
        print("quiet")
        """
    assert run(router, script) == ["quiet"]
