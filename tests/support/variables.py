"""Our variables: what a test's machine has set must not reach it."""

from __future__ import annotations

import os

import pytest


def without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all variables of ours away, for a test."""
    for name in [name for name in os.environ if name.startswith("STATEHOUSE_")]:
        monkeypatch.delenv(name)
