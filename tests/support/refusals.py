"""Why a call is refused."""

from __future__ import annotations

from collections.abc import Callable

from statehouse.errors import LookupFailure, Reason


def why_refused(ask: Callable[[], object]) -> Reason | None:
    """Return the reason of what is asked for; None if it is answered."""
    try:
        ask()
    except LookupFailure as failure:
        return failure.reason
    return None
