"""The cells of docs/compatibility.md: applications and clients with each version of Spark.

What a version has runs from topics to lookups; what it lacks is refused by name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from examples.lru_counts import sample as lru_counts
from examples.page_views import sample as page_views
from examples.tally import sample as tally
from statehouse.client import Client
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.samples import create_topics, send
from tests.integration.processor.support import ProcessorProcess
from tests.interop.spark_versions.installed import VERSIONS, SparkInstall, installed
from tests.support.fleet import Servers
from tests.support.polling import poll_until

pytestmark = [pytest.mark.timeout(2400), pytest.mark.long]

SERVED_S: Final = 240.0
VIEWS: Final = {"home": 4, "cart": 2, "help": 1}
WITH_STATE: Final = ("4.2", "4.1", "4.0")
WITH_ROWS: Final = ("4.2", "4.1")
WITH_FRAMES: Final = ("4.2", "4.1", "4.0")
WITH_FILTERS: Final = ("4.2", "4.1")
FRAME: Final = """
import json, sys
from pyspark.sql import SparkSession
router, way, pushdown = sys.argv[1:]
builder = SparkSession.builder.config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.python.filterPushdown.enabled", pushdown)
if way == "connect":
    builder = builder.remote("local[1]").config("spark.connect.grpc.binding.address", "127.0.0.1")
else:
    builder = builder.master("local[1]")
session = builder.getOrCreate()
frame = session.read.format("statehouse").option("router", router).option("store", "views-per-page")
frame = frame.option("pushdown", pushdown).load()
print(type(session).__module__, json.dumps({row.key: row.value for row in frame.where("key <> 'help'").collect()}))
session.stop()
"""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of Spark, a broker with sample data, and a folder."""

    spark: SparkInstall
    broker: EmbeddedKafka
    folder: Path

    def processor(self, topology: str) -> ProcessorProcess:
        """Return an application's processor, not started."""
        folder = self.folder / topology
        folder.mkdir()
        program = (self.spark.python, "-m", "processor.cli", "--master", "local[2]")
        return ProcessorProcess(topology, self.broker.bootstrap, folder, program=program, env=self.spark.environment)

    @contextmanager
    def served(self, topology: str, application_id: str) -> Iterator[str]:
        """Run an application with a node and a router; yield the router's address."""
        processor = self.processor(topology)
        processor.start()
        with Servers(self.broker.bootstrap, application_id, self.folder / topology) as servers:
            servers.node("n1")
            router = servers.router()
            try:
                processor.wait_for("processor started")
                yield router.target
                assert processor.is_running, processor.log_tail()
            finally:
                processor.stop()


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Version]:
    spark = installed(request.param)
    with EmbeddedKafka() as broker:
        for sample in (page_views, tally, lru_counts):
            create_topics(broker.bootstrap, sample.TOPICS, 2)
            send(broker.bootstrap, sample.RECORDS)
        yield Version(spark, broker, tmp_path_factory.mktemp(f"spark-{spark.minor}"))


@pytest.fixture(scope="module")
def router(version: Version) -> Iterator[str]:
    """The router of an application with native operators."""
    with version.served("examples.page_views.topology", "page-views") as target:
        yield target


def becomes(target: str, store: str, expected: dict[str, Any]) -> None:
    """Wait until a router answers the keys so."""
    found: dict[str, Any] = {}

    def is_right() -> bool:
        with Client(target) as client:
            try:
                found.update({key: client.get(store, key).value for key in expected})
            except LookupFailure as failure:
                found["failure"] = failure
        return {key: found.get(key) for key in expected} == expected

    try:
        poll_until(is_right, SERVED_S, f"{store} to be served")
    except AssertionError:
        assert found == expected
        raise


@pytest.mark.feature("applications-data-source")
def test_an_application_of_native_operators_is_served(router: str) -> None:
    becomes(router, "views-per-page", VIEWS)


@pytest.mark.feature("applications-data-source")
def test_an_application_with_state_in_python_is_served_or_refused_by_name(version: Version) -> None:
    topology = "examples.tally.topology"
    if version.spark.minor in WITH_STATE:
        with version.served(topology, "program-tally") as target:
            expected = {"numberActive": 2, "numberInactive": 1, "lastLogin": "04-02-2024T08:30:00Z"}
            becomes(target, "tallies", {"7": expected})
        return
    refused(version, topology, "aggregate, joins")


def test_a_bounded_store_is_served_or_refused_by_name(version: Version) -> None:
    topology = "examples.lru_counts.topology"
    if version.spark.minor in WITH_ROWS:
        with version.served(topology, "lru-counts") as target:
            becomes(target, "counts", {"patient-1": 1, "patient-59": 2})
        return
    refused(version, topology, "a store with max_entries" if version.spark.minor == "4.0" else "parse_text")


@pytest.mark.feature("applications-data-source")
@pytest.mark.parametrize("way", ["classic", "connect"])
def test_a_store_is_a_frame(version: Version, router: str, way: str) -> None:
    becomes(router, "views-per-page", VIEWS)
    ran = version.spark.run(FRAME, router, way, "false")
    if version.spark.minor not in WITH_FRAMES:
        assert ran.returncode != 0
        return
    assert ran.returncode == 0, ran.stderr[-4000:]
    module, said = ran.stdout.splitlines()[-1].split(" ", 1)
    assert ("connect" in module) == (way == "connect")
    assert json.loads(said) == {"home": "4", "cart": "2"}


def test_filters_are_pushed_down_or_the_option_is_refused(version: Version, router: str) -> None:
    becomes(router, "views-per-page", VIEWS)
    ran = version.spark.run(FRAME, router, "classic", "true")
    if version.spark.minor in WITH_FILTERS:
        assert ran.returncode == 0, ran.stderr[-4000:]
        assert json.loads(ran.stdout.splitlines()[-1].split(" ", 1)[1]) == {"home": "4", "cart": "2"}
        return
    assert ran.returncode != 0
    if version.spark.minor in WITH_FRAMES:
        assert "this Spark pushes no filters down" in ran.stderr


def refused(version: Version, topology: str, needed_by: str) -> None:
    """See that an application ends at its start, with an error that names what Spark lacks."""
    processor = version.processor(topology)
    processor.start()
    assert processor.wait(120) == 1, processor.log_tail()
    said = processor.log_tail()
    assert f"Spark {VERSIONS[version.spark.minor]} lacks" in said
    assert needed_by in said


def test_the_tests_own_version_is_one_of_them() -> None:
    assert sys.version_info[:2] == (3, 11)
    import pyspark  # noqa: PLC0415 - only its version

    assert pyspark.__version__ in VERSIONS.values()
