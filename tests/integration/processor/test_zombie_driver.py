"""A driver that was taken for dead goes on next to the one that has taken its place; either may be the last release."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ProcessIdentity, descendants
from tests.integration.processor.counters import EVENTS, STORE, application_id
from tests.integration.processor.support import ProcessorProcess, check_counts, messages, store_of
from tests.support.chaos import NumberFeed
from tests.support.fleet import THIS, Build
from tests.support.kafka import create_topic
from tests.support.polling import poll_until
from tests.upgrades.builds import last_release

TOPOLOGY = "tests.integration.processor.counters"
CHANGELOG = changelog_topic(application_id, STORE)
PARTITIONS, KEYS, EVENTS_MADE, PER_S = 4, 100, 20_000, 1_000
DEADLINE_S = 240.0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("older", [None, "frozen", "successor"], ids=["alike", "a release frozen", "back to a release"])
def test_a_frozen_driver_that_thaws_beside_its_successor_ends_and_changes_nothing(tmp_path: Path, older: str | None):
    directories = [tmp_path / name for name in ("old", "new")]
    for directory in directories:
        directory.mkdir()
    with EmbeddedKafka() as broker:
        create_topic(broker.bootstrap, EVENTS, PARTITIONS)
        first, second = (last_release(tmp_path) if older == place else THIS for place in ("frozen", "successor"))
        old = driver_of(first, broker, directories[0])
        new = driver_of(second, broker, directories[1], "--checkpoint-dir", old.checkpoint.as_uri())
        with NumberFeed(broker.bootstrap, EVENTS, PARTITIONS, KEYS, PER_S, seed=1) as feed:
            feed.allow(EVENTS_MADE // 4)
            try:
                old.start()
                old.wait_for("batch committed", 1, DEADLINE_S)
                feed.allow(EVENTS_MADE // 2)  # takes some seconds, so that a batch is under way after the next
                old.wait_for("batch committed", 2, DEADLINE_S)
                frozen = processes_of(old)
                for process in frozen:
                    process.send(signal.SIGSTOP)
                new.start()
                new.wait_for("batch committed", 1, DEADLINE_S)
                feed.allow(EVENTS_MADE)
                for process in frozen:
                    process.send(signal.SIGCONT)
                assert old.wait(90) == 1, old.log_tail()
                assert old.events("processor stopped"), old.log_tail()
                feed.finish(60)
                poll_until(lambda: counted(broker) == EVENTS_MADE, DEADLINE_S, "all events to be counted")
                assert new.stop() == 0, new.log_tail()
            finally:
                for process in (*processes_of(old), *processes_of(new)):
                    process.send(signal.SIGKILL)
        check_counts(broker.bootstrap, CHANGELOG, feed.sums)


def driver_of(build: Build, broker: EmbeddedKafka, directory: Path, *options: str) -> ProcessorProcess:
    """Return a driver of a version of the code; the topology is this one's."""
    env = {"PYTHONPATH": f"{build.root}:{THIS.root}"}
    return ProcessorProcess(TOPOLOGY, broker.bootstrap, directory, *options, env=env, tree=build.root)


def processes_of(driver: ProcessorProcess) -> list[ProcessIdentity]:
    """Return a driver's Python and Java, and their workers; none if it has ended."""
    if not driver.is_running:
        return []
    own = ProcessIdentity.of(driver.pid)
    return [*([] if own is None else [own]), *descendants(driver.pid)]


def counted(broker: EmbeddedKafka) -> int:
    """Return how many events the changelog says there were."""
    store = store_of(messages(broker.bootstrap, CHANGELOG))
    return sum(json.loads(value)["count"] for value in store.values())
