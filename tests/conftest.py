"""Fixtures for the whole tree."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import structlog
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from statehouse.local.kafka import EmbeddedKafka
from tests.support.proxy import PROXY

# A test runner's terminal must not decide how wide the commands under test print.
os.environ.pop("COLUMNS", None)

# Spark's driver lives too short here for the optimising compiler to pay for itself: with the first one alone the same
# tests take two thirds of the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Nodes and routers that tests start are served as those that users start once the tools are built.
os.environ.setdefault("STATEHOUSE_PROXY", str(PROXY))

_SPARK_FOLDERS = ("tests/e2e/", "tests/integration/processor/")

# How long an example takes says more of the machine's other work than of ours.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")
# Mutants are told from the original by a test that fails, at the same example in every run; how is of no interest.
hypothesis.settings.register_profile(
    "mutation", deadline=None, derandomize=True, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
)


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test leave its level to those that come after it: loggers that are kept would have it for good."""
    before, configure = structlog.get_config(), structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **given: configure(**given | {"cache_logger_on_first_use": False})
    )
    yield
    configure(**before)


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker for the whole session. Use `unique_name`; a test that stops or kills a broker starts its own.

    What can be compacted is so at once, instead of after 15 s: few topics have segments that are rolled so early.
    """
    with EmbeddedKafka(config={"log.cleaner.backoff.ms": "300"}) as broker:
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


class _Scheduler(LoadScopeScheduling):
    """Hands out whole files, for their fixtures' sake, and all that runs Spark to one and the same worker.

    Two Spark drivers at once would take a small machine's cores from each other, and what waits for them its patience.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "spark" if file.startswith(_SPARK_FOLDERS) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Schedule by the files' contents."""
    return _Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark: it takes one worker for longer than all the rest takes the other."""
    items.sort(key=lambda item: not item.nodeid.startswith(_SPARK_FOLDERS))
