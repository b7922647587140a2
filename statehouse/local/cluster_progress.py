"""What happens to the parts of a cluster, for progress shown to people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """Something that happens to a part.

    `event` is "starting", "doing", "downloading", "ready", "stopped" or "killed". `seconds` is how long the part took
    to get there, `detail` what it does or where it listens.
    """

    part: str
    event: str
    seconds: float = 0.0
    detail: str = ""


OnProgress = Callable[[ClusterProgress], None]
