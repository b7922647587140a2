"""The bytes of requests that are kept."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.runtime.held_bytes import HeldBytes


def test_so_many_are_kept_at_once_and_those_that_are_over_count_no_more() -> None:
    held = HeldBytes("watches of this node", 10)
    with ExitStack() as stack:
        stack.enter_context(held.hold(4))
        stack.enter_context(held.hold(6))
        with pytest.raises(LookupFailure, match="10 bytes are kept for watches of this node, and 1 more") as caught:
            stack.enter_context(held.hold(1))
        assert caught.value.reason is Reason.OVERLOADED
        stack.enter_context(held.hold(0))
    with pytest.raises(ZeroDivisionError), held.hold(10):
        raise ZeroDivisionError
    with held.hold(10):
        pass
