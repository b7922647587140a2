"""Whether a router is ready: it has a routing table, and the table isn't old. Pure."""

from __future__ import annotations

from collections.abc import Collection


def longest_silence_s(silences_s: Collection[float | None]) -> float | None:
    """Return the longest silence of the topics that a table is made of, in seconds; None if one was never heard.

    `silences_s`: for each topic, the time since it was last known to be read to its end.
    """
    known_s = [silence_s for silence_s in silences_s if silence_s is not None]
    return max(known_s, default=None) if len(known_s) == len(silences_s) else None


def is_ready(*, has_table: bool, silence_s: float | None, longest_s: float) -> bool:
    """Whether callers are to be sent to a router whose table's topics are silent for so long.

    `longest_s`: the bound, 0 for none.
    """
    return has_table and silence_s is not None and (silence_s <= longest_s or not longest_s)
