"""What a processor that starts is doing, by the lines of its log. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final


def stage_of(line: str) -> str | None:
    """Return what a processor does from this line of its log on, in words; None if the line doesn't say."""
    try:
        said = json.loads(line)
    except ValueError:
        return None
    stage = _STAGES.get(str(said.get("event"))) if isinstance(said, dict) else None
    return None if stage is None else stage(said)


def _committed(said: Mapping[str, Any]) -> str:
    number = "first batch" if said.get("batch_id") == 0 else f"batch {said.get('batch_id')}"
    return f"{number} of query {said.get('query')} committed after {said.get('took_ms', 0)} ms"


_STAGES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "starting Spark": lambda _said: "Spark is starting",
    "Spark has started": lambda said: f"Spark has started after {said.get('seconds')} s",
    "creating a source topic": lambda said: f"creates the source topic {said.get('topic')}",
    "waiting for source topics": lambda said: f"waits for source topics: {', '.join(map(str, said.get('topics', ())))}",
    "processor started": lambda _said: "runs its first batch",
    "batch committed": _committed,
}
