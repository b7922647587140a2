"""The context of a trace, as W3C's `traceparent` has it: which span of whom a call belongs to. Pure.

It comes from outside, so what can't be one is none: a trace that can't be continued must never fail a lookup.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

TRACEPARENT: Final = "traceparent"
"""The name of the metadata, and of the field, that have it."""
# https://www.w3.org/TR/trace-context/: later versions may have more after the flags.
_FORM: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.{0,200})?"
)
_SAMPLED: Final = 1


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span that others may be below of, or linked to. `trace_id`, `span_id`: in hexadecimal digits."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @classmethod
    def parse(cls, text: str) -> TraceContext | None:
        """Return the context that a `traceparent` gives; None if it gives none."""
        if not text or (found := _FORM.fullmatch(text)) is None:
            return None
        trace_id, span_id, flags = found.groups()
        return cls(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def sampled_context(text: str) -> TraceContext | None:
    """Return the context that a `traceparent` gives if its caller keeps the trace; else None."""
    context = TraceContext.parse(text)
    return context if context is not None and context.is_sampled else None
