"""A web process in front of a router, as a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import httpx

from bench.sides.servers import ROOT
from bench.waiting import wait_for
from statehouse.local.ports import LOOPBACK, free_port

_STARTS_WITHIN_S = 60.0


@contextlib.contextmanager
def web_process(
    router: str,
    *options: str,
    modules: Sequence[str] = ("statehouse.web",),
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Run a web process with these options; yield its address as http://HOST:PORT once it answers.

    `modules`: what Python runs, the first one with the names of the others before the options. `variables`: more of
    the environment.
    """
    base = f"http://{LOOPBACK}:{free_port()}"
    given = ["--router", router, "--http-port", base.rpartition(":")[2], "--log-level", "warning", *options]
    process = subprocess.Popen([sys.executable, "-m", *modules, *given], cwd=ROOT, env=os.environ | variables)
    try:
        wait_for(lambda: _answers(base), _STARTS_WITHIN_S, "the web process to answer")
        yield base
    finally:
        process.terminate()
        process.wait(30.0)


def _answers(base: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{base}/healthz", timeout=5.0).status_code == httpx.codes.OK
    return False
