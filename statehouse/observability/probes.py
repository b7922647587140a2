"""Probes over HTTP, for processes that serve no gRPC: asked on the port of their metrics.

A probe answers 200, or 503 with the reason in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

WhyNot = Callable[[], str]
"""Returns why not; empty if all is well. Called on threads of the server."""

STARTED: Final = "/startupz"
"""Whether the process has started. Until then it may take its time."""
LIVE: Final = "/livez"
"""Whether the process works at all. If not, only a restart helps."""
READY: Final = "/readyz"
"""Whether the process does all that it is there for."""

NO_PROBES: Final[Mapping[str, WhyNot]] = MappingProxyType({})


def answer(probe: WhyNot, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request as WSGI has it."""
    problem = probe()
    start_response(
        "503 Service Unavailable" if problem else "200 OK",
        [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")],
    )
    return [f"{problem or 'ok'}\n".encode()]
