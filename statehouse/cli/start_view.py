"""What people see of a cluster that starts or stops: a line an event, and on a terminal one live line. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from statehouse.local.cluster_progress import ClusterProgress

# A download tells several times a second.
_DOWNLOAD_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class _PartUnderWay:
    began_s: float
    detail: str = ""


class StartView:
    """Takes events with their times, in seconds of any clock; returns lines. `is_live`: there is a live line, too."""

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self._under_way: dict[str, _PartUnderWay] = {}
        self._download_due_s = float("-inf")

    def take(self, step: ClusterProgress, now_s: float) -> str | None:
        """Return the line to print for an event; None if there is none."""
        match step.event:
            case "starting":
                self._under_way[step.part] = _PartUnderWay(now_s)
                return None if self._is_live else _line(step.part, "starting")
            case "doing" | "downloading":
                known = self._under_way.get(step.part, _PartUnderWay(now_s))
                self._under_way[step.part] = replace(known, detail=step.detail)
                return None if self._is_live or not self._is_due(step, now_s) else _line(step.part, step.detail)
            case "ready":
                # The jars are there once something that needs them works.
                for part in (step.part, "jars"):
                    self._under_way.pop(part, None)
                where = f"  {step.detail}" if step.detail else ""
                return _line(step.part, f"ready in {step.seconds:.1f} s{where}")
            case event:
                self._under_way.pop(step.part, None)
                return _line(step.part, f"{event} after {step.seconds:.1f} s")

    def live(self, now_s: float) -> str:
        """Return what is under way: first what says what it does, then the others' names."""
        telling = [
            f"{part}: {under_way.detail} ({now_s - under_way.began_s:.0f} s)"
            for part, under_way in self._under_way.items()
            if under_way.detail
        ]
        silent = {part: each.began_s for part, each in self._under_way.items() if not each.detail}
        if silent:
            telling.append(f"{', '.join(silent)} starting ({now_s - min(silent.values()):.0f} s)")
        return "; ".join(telling)

    def _is_due(self, step: ClusterProgress, now_s: float) -> bool:
        if step.event != "downloading":
            return True
        if now_s < self._download_due_s:
            return False
        self._download_due_s = now_s + _DOWNLOAD_EVERY_S
        return True


def _line(part: str, what: str) -> str:
    return f"{part:<12} {what}"
