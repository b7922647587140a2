"""Record what the reference answers: `python -m tests.conformance.record`. Read the difference before you keep it."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import Message

from tests.conformance.calls import Calls
from tests.conformance.outcomes import as_json, outcome
from tests.conformance.reference import REFERENCES
from tests.conformance.scenes import SCENES
from tests.conformance.subject import Node

RECORDED: Final = Path(__file__).parent / "recorded"
_CALLS: Final = {"formats": 250, "places": 200, "states": 400}
"""More than the others: they have many stores."""
_CALLS_OF_OTHERS: Final = 140
_SEED: Final = 20_261_129
_PAGES_MAX: Final = 5
"""A walk asks for no more pages after this one."""


async def answered(node: Node, calls: Iterator[tuple[str, Message]], count: int) -> list[dict[str, Any]]:
    """Ask a node; of a page also the ones that follow it."""
    lines = []
    for method, drawn in islice(calls, count):
        request: Any = drawn
        for _ in range(_PAGES_MAX):
            found, answer = await outcome(node, method, request)
            lines.append({"method": method, "request": as_json(request), **found})
            token = getattr(answer, "next_page_token", "")
            if not token:
                break
            following = type(request)()
            following.CopyFrom(request)
            following.page_token = token
            request = following
    return lines


async def _record() -> None:
    for name, scene in SCENES.items():
        with tempfile.TemporaryDirectory() as directory:
            async with REFERENCES["rocksdb"](scene, Path(directory)) as node:
                lines = await answered(node, iter(Calls(scene, _SEED)), _CALLS.get(name, _CALLS_OF_OTHERS))
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (RECORDED / f"{name}.jsonl").write_text(text, encoding="utf-8")
        sys.stdout.write(f"{name}: {len(lines)} calls\n")


if __name__ == "__main__":
    asyncio.run(_record())
