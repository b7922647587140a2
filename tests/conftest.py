"""Fixtures for the whole tree."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from statehouse.local.kafka import EmbeddedKafka

# A test runner's terminal must not decide how wide the commands under test print.
os.environ.pop("COLUMNS", None)

_SPARK_FOLDERS = {Path(__file__).parent / folder for folder in ("e2e", "integration/processor")}

# How long an example takes says more of the machine's other work than of ours.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


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


@pytest.hookimpl(tryfirst=True)  # before the runner reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file on one worker, for its fixtures' sake, and all that runs Spark on the same one.

    Two Spark drivers at once would take a small machine's cores from each other, and what waits for them its patience.
    """
    for item in items:
        runs_spark = not _SPARK_FOLDERS.isdisjoint(item.path.parents)
        item.add_marker(pytest.mark.xdist_group("spark" if runs_spark else str(item.path)))
