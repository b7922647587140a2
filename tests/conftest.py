"""Fixtures for the whole tree."""

from __future__ import annotations

import functools
import gc
import logging
import os
import re
import signal
import uuid
from collections.abc import Callable, Iterator

import hypothesis
import pytest
import structlog
import typer.testing
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from statehouse.local.kafka import EmbeddedKafka
from tests.support.proxy import PROXY

# Collecting ten thousand tests makes little garbage, and looking for it takes half of that time; see below.
gc.disable()

# A test runner's terminal must not decide how wide the commands under test print.
os.environ.pop("COLUMNS", None)

# Started in the background of a script, a test runner ignores Ctrl-C, and so would the commands under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Nor may the contexts of the user that runs tests decide where commands go.
os.environ["STATEHOUSE_CONTEXT"] = ""

# Spark's driver lives too short here for the optimising compiler to pay for itself: with the first one alone the same
# tests take two thirds of the time.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Nodes and routers that tests start are served as those that users start once the tools are built.
os.environ.setdefault("STATEHOUSE_PROXY", str(PROXY))

# Each command that tests run in this process would make the tree of all commands anew, which takes most of its time.
typer.testing._get_command = functools.cache(typer.testing._get_command)

_SPARK_FOLDERS = ("tests/e2e/", "tests/integration/attach/", "tests/integration/processor/")
# They are there for what they test, and need a broker only.
_WITHOUT_SPARK = tuple(
    f"tests/integration/processor/test_{name}.py"
    for name in ("jar", "reset", "sink_protocol", "static", "topic_retention", "topics")
)

# How long an example takes says more of the machine's other work than of ours.
hypothesis.settings.register_profile("tests", deadline=None)
hypothesis.settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `make test` doesn't use."""
    parser.addoption(
        "--update-golden", action="store_true", help="write what commands print now into the golden files, and pass"
    )


@pytest.fixture(autouse=True)
def logging_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no test leave its level, or its handler, to those that come after it.

    Loggers that are kept would have the level for good, and a thread of another test would write into their output.
    """
    before, configure = structlog.get_config(), structlog.configure
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(
        structlog, "configure", lambda **given: configure(**given | {"cache_logger_on_first_use": False})
    )
    yield
    configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def kafka() -> Iterator[EmbeddedKafka]:
    """One broker for the whole session. Use `unique_name`; a test that stops or kills a broker starts its own.

    The broker looks every 3 s for what can be compacted, instead of every 15 s. It looks at the topics of all tests
    that ran before: each second would cost a fifth of a processor at the end. It isn't restarted, so its session may
    last as long as is usual: a busy machine may hold it up.
    """
    config = {"log.cleaner.backoff.ms": "3000", "broker.session.timeout.ms": "18000"}
    with EmbeddedKafka(heap_mb=512, config=config) as broker:
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

    Two Spark drivers at the same time would take a small machine's cores from each other, and what waits for them its
    patience.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if _runs_spark(nodeid) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Schedule by the files' contents."""
    return _Scheduler(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage again, and never in the tests themselves."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark: it takes one worker for longer than all the rest takes the other."""
    items.sort(key=lambda item: not _runs_spark(item.nodeid))


def _runs_spark(nodeid: str) -> bool:
    return nodeid.startswith(_SPARK_FOLDERS) and not nodeid.startswith(_WITHOUT_SPARK)
