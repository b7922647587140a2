"""Tells a node to drain, for a person who looks at its page."""

from __future__ import annotations

from dataclasses import dataclass

import structlog
from starlette.requests import Request

from statehouse.contract.membership import target
from statehouse.errors import LookupFailure
from statehouse.web.gateway import Gateway
from statehouse.web.pages.poller import Poller
from statehouse.web.pages.recorder import Recorder
from statehouse.web.pages.views.nodes import find_node

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Note:
    """What came of it, for people."""

    words: str
    is_bad: bool = True


async def drain(gateway: Gateway, poller: Poller, recorder: Recorder, request: Request, name: str) -> Note:
    """Tell a node of the fleet to drain, for the caller of a request.

    Raises:
        CallerRefused: the rules don't allow it.

    """
    node = None if recorder.fleet is None else find_node(recorder.fleet, name)
    if node is None:
        return Note(f"The fleet has no node {name}.")
    try:
        tasks = await gateway.drain(request, target(node.host.host, node.host.port))
    except LookupFailure as failure:
        return Note(f"{name} can't be told to drain: {failure.message}")
    await poller.ask_again(node)
    log.info("a node was told to drain", node=name, active_tasks=len(tasks))
    return Note(f"{name} drains.", is_bad=False)
