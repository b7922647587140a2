"""Property tests in two sizes: some examples in every run, many in the long one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

FEW, MANY = 100, 1_000


def given_many(*strategies: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Hypothesis' `given`, with `FEW` examples in normal runs and `MANY` in `make test-long`."""

    def decorate(test: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.long)])
        def sized(examples: int) -> None:
            settings(max_examples=examples)(given(*strategies)(test))()

        sized.__doc__ = test.__doc__
        return sized

    return decorate
