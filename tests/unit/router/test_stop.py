"""A router and a web process end within a bound, whatever hangs."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Final

import pytest

from statehouse.runtime.stop_deadline import EXIT_CODE

_BEGIN: Final = """
import asyncio, threading, sys
from statehouse.runtime import stop_deadline
stop_deadline._THREADS_END_S = 0.3
for_ever = threading.Event().wait

def listens(*_):
    print("listens", flush=True)
"""
_ROUTER: Final = """
from router import server
from statehouse.settings import RouterSettings
server.CLOSE_S = 0.3
started, ends = server.RouterServer.start, server.RouterServer.stop

async def start(self, *given):
    await started(self, *given)
    BEGINS
    listens()

server.RouterServer.start = start
STOPS
nobody = "127.0.0.1:1"
server.run(RouterSettings(application_id="a", bootstrap=nobody, router_port=0, proxy="none", stop_grace_ms=100))
"""
_WEB: Final = """
from statehouse.web import server
from statehouse.settings import WebSettings
server._CLOSE_S, server.STOP_GRACE_S = 0.3, 0.1

def extra(gateway):
    gateway.on_start(begins)
    STOPS
    return ()

async def begins():
    BEGINS

server.run(WebSettings(router="127.0.0.1:1", http_port=0), extra, on_listen=lambda address: address and listens())
"""
_A_THREAD: Final = "asyncio.get_running_loop().run_in_executor(None, for_ever)"


@pytest.mark.parametrize(
    ("process", "begins", "stops"),
    [
        (_ROUTER, _A_THREAD, ""),
        (_ROUTER, "pass", "server.RouterServer.stop = lambda *_: for_ever()"),
        (_WEB, _A_THREAD, ""),
        (_WEB, "pass", "gateway.on_close(for_ever)"),
    ],
    ids=[f"{name}, {what}" for name in ("router", "web") for what in ("a thread", "the event loop")],
)
def test_a_stop_ends_whatever_hangs(process: str, begins: str, stops: str) -> None:
    code = _BEGIN + process.replace("BEGINS", begins).replace("STOPS", stops)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            line = running.stdout.readline()
            running.send_signal(signal.SIGTERM)
            _, told = running.communicate(timeout=30)
        finally:
            running.kill()
    assert line == "listens\n", told
    assert running.returncode == EXIT_CODE, told
    assert "the stop takes too long" in told
