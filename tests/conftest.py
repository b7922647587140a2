"""Fixtures for the whole tree."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator

import pytest

from statehouse.local.kafka import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker for the whole session. Use `unique_name`; a test that stops or kills a broker starts its own."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def unique_name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names for topics, groups and application ids that no other test of this or another run has.

    They begin with the test's name, so that a broker's log tells which test it is about.
    """
    test = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-").lower()[:60]

    def name(suffix: str) -> str:
        return f"{test}-{uuid.uuid4().hex[:8]}-{suffix}"

    return name
