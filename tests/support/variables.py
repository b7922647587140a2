"""Our environment variables: values set on the machine must not reach a test."""

from __future__ import annotations

import os

import pytest


def without_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all variables of ours away, for a test."""
    for name in [name for name in os.environ if name.startswith("STATEHOUSE_")]:
        monkeypatch.delenv(name)
