"""A bank that Spark keeps is read while it trades and while things die: each moment is one batch.

Transfers go on all the time. Reads of moments must be answered within two seconds, whatever is killed, frozen or moved.
Plain reads beside them show that there was something to be torn. Afterwards each batch that an answer named is compared
with the changelogs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import pytest
import structlog
from pyspark.sql import SparkSession

from bench.truth import SOURCE
from bench.truth.trading import Trading
from processor.application.topology import Topology
from statehouse.contract.topology import changelog_topic
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.bank import application_id
from tests.integration.processor.bank_faults import Fault, faults_of_fleet, faults_of_spark
from tests.integration.processor.bank_fleet import MENDED_S, OPENED_S, BankFleet
from tests.integration.processor.running import processing
from tests.integration.processor.support import ProcessorProcess, messages
from tests.support.bank import ACCOUNTS, GROUPS, NEWEST, NUMBER, SUMS, Asked, Seen, group_of, pair_of
from tests.support.bank_batches import ShownBatches, values_of
from tests.support.bank_figures import ages_ms, joined, table
from tests.support.bank_readers import ALL_ACCOUNTS, Doors, Readers, Sort, numbers
from tests.support.kafka import create_topic
from tests.support.polling import poll_until
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, process_on

log = structlog.get_logger(__name__)

TOPOLOGY: Final = "tests.integration.processor.bank"
EVERYTHING: Final[Asked] = {**ALL_ACCOUNTS, SUMS: [*(group_of(str(each)) for each in range(GROUPS)), NEWEST]}
PAIRS: Final = NUMBER // 2
BY_ROUTERS, BY_NODES, BY_HTTP = "pairs by routers", "pairs by nodes", "pairs by HTTP"
SCANS, BOTH, PLAIN = "whole scans", "both stores", "both stores, plain"
FRAMES, SPARK = "frames of pandas", "frames of Spark"
IDLE_S: Final = 0.2
"""Between a thread's reads while nobody waits for them: the fleet and Spark have two cores."""
SHOWN: Final = 20
SPARK_S: Final = 60.0
"""How long a frame of Spark may take: a job of Spark has its own times."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is read and broken.

    Attributes:
        rounds: how often each fault strikes.
        pairs, scans, both, frames: answers at least; frames of either kind.
        torn: plain reads of both stores that must be torn, or the test shows nothing.
        frozen_s: how long a frozen node stands still.
        burst, every_s: so many transfers, so often.
        threads: that read at a time, for each sort that is read most.
        pause_s: between a thread's reads.
        waits_s: for the answers of a part at most.
        answered_within_s: how long a read may take, further attempts included.

    """

    rounds: int
    pairs: int
    scans: int
    both: int
    frames: int
    torn: int
    frozen_s: float
    burst: int
    every_s: float
    threads: int
    pause_s: float
    waits_s: float
    answered_within_s: float

    def due(self, parts: int) -> dict[str, int]:
        """Return how many answers of each sort are due in each of so many parts."""
        lookups = self.pairs / PAIRS
        whole = {
            BY_ROUTERS: 0.4 * lookups,
            BY_NODES: 0.5 * lookups,
            BY_HTTP: 0.1 * lookups,
            SCANS: self.scans,
            BOTH: self.both,
            PLAIN: self.both / 2,
            FRAMES: self.frames,
            SPARK: self.frames,
        }
        return {name: math.ceil(count / parts) for name, count in whole.items()}


SMALL = Size(
    rounds=1,
    pairs=1_600,
    scans=20,
    both=100,
    frames=1,
    torn=1,
    frozen_s=2.0,
    burst=5,
    every_s=0.05,
    threads=1,
    pause_s=0.01,
    waits_s=120.0,
    answered_within_s=20.0,  # other tests run meanwhile
)
"""One node dies; `test_moments_bank` has the other faults of a fleet."""
FULL = Size(
    rounds=3,
    pairs=900_000,
    scans=20_000,
    both=20_000,
    frames=20,
    torn=10,
    frozen_s=8.0,
    burst=5,
    every_s=0.05,
    threads=2,
    pause_s=0.0,
    waits_s=600.0,
    answered_within_s=2.0,
)


def sorts_of(doors: Doors, frame: Callable[[], Seen], size: Size) -> dict[str, Sort]:
    """Return how the bank is read. `frame` reads it by Spark."""
    threads, bound_s = size.threads, size.answered_within_s
    often = partial(Sort, pause_s=IDLE_S, answered_within_s=bound_s)
    return {
        BY_ROUTERS: often(lambda _rng: doors.of_moment(doors.routed, ALL_ACCOUNTS), threads=threads),
        BY_NODES: often(lambda _rng: doors.of_moment(doors.direct, ALL_ACCOUNTS), threads=threads),
        BY_HTTP: often(lambda _rng: doors.by_http(ALL_ACCOUNTS)),
        SCANS: often(lambda _rng: doors.scanned(), threads=threads),
        BOTH: often(lambda _rng: doors.of_moment(doors.direct, EVERYTHING)),
        PLAIN: often(lambda _rng: doors.plain(doors.direct, EVERYTHING), is_plain=True),
        FRAMES: Sort(lambda _rng: doors.frame(), pause_s=1.0, answered_within_s=bound_s),
        SPARK: Sort(lambda _rng: frame(), pause_s=5.0, answered_within_s=SPARK_S),
    }


class Play:
    """Has faults strike while the bank trades and is read."""

    def __init__(self, bootstrap: str, fleet: BankFleet, trading: Trading, spark: SparkSession, size: Size) -> None:
        self._bootstrap, self._fleet, self._trading, self._size = bootstrap, fleet, trading, size
        self._doors, self._batches = Doors(fleet.targets, fleet.addresses), ShownBatches()
        sorts = sorts_of(self._doors, partial(fleet.frame, spark), size)
        self.readers = Readers(sorts, self._batches.add, size.pause_s)

    def play(self, faults: Mapping[str, Fault]) -> None:
        """Let each strike as often as the size says; then check what was read."""
        due = self._size.due(2 * self._size.rounds * len(faults))
        with closing(self._doors):
            with self._trading.running(), self.readers.reading():
                self._go_on(due)
                for number in range(self._size.rounds):
                    for name, fault in faults.items():
                        self._strike(number, name, fault, due)
            self._check()

    def _strike(self, number: int, name: str, fault: Fault, due: Mapping[str, int]) -> None:
        began = time.monotonic()
        self.readers.phase = name
        fault.strike(number)
        self.readers.wait(due, self._size.waits_s)
        fault.mend(number)
        poll_until(self._fleet.is_settled, MENDED_S, f"all to be well after {name!r}")
        self.readers.phase = "calm"
        self._go_on(due)
        log.info(
            "bank",
            round=number,
            fault=name,
            took_s=round(time.monotonic() - began),
            answers=self.readers.answers.total(),
            torn=len(self.readers.torn),
            failed=len(self.readers.failed),
            torn_plain=len(self.readers.torn_plain),
        )

    def _go_on(self, due: Mapping[str, int]) -> None:
        """Wait for answers, and for two further batches: what was restored shows none before the next one."""
        before = self._batches.newest
        self.readers.wait(due, self._size.waits_s)
        poll_until(lambda: self._batches.newest >= before + 2, self._size.waits_s, "two batches")

    def _check(self) -> None:
        """Compare with the changelogs, and with what was transferred."""
        expected = {account: balance for account, balance in self._trading.bank.balances.items() if balance}

        def is_there() -> bool:
            try:
                return numbers(self._fleet.client.scan(ACCOUNTS)) == expected
            except LookupFailure:
                return False

        poll_until(is_there, MENDED_S, "all transfers to be in the accounts")
        changelogs = {
            store: messages(self._bootstrap, changelog_topic(application_id, store)) for store in (ACCOUNTS, SUMS)
        }
        assert not self._batches.unlike(values_of(changelogs))[:3]


def show(readers: Readers) -> None:
    sys.stdout.write(f"\n{table(readers.tallies, readers.sorts)}\n")
    for text in (*readers.torn[:SHOWN], *readers.failed[:SHOWN]):
        sys.stdout.write(f"{text}\n")


def check(readers: Readers, size: Size) -> None:
    assert not readers.torn, readers.torn[:3]
    assert not readers.failed, readers.failed[:3]
    assert len(readers.torn_plain) >= size.torn, "what are moments for?"
    for name, count in size.due(1).items():
        assert readers.answers[name] >= count, name


def trading_of(bootstrap: str, size: Size) -> Trading:
    create_topic(bootstrap, SOURCE, 2)
    named = [pair_of(number) for number in range(PAIRS)]
    trading = Trading(bootstrap, 2, seed=1, named=named, burst=size.burst, every_s=size.every_s)
    trading.open()
    return trading


@pytest.mark.feature("reads-one-batch")
@pytest.mark.timeout(600)
def test_every_moment_of_spark_s_bank_is_one_batch(kafka: EmbeddedKafka, spark: SparkSession, tmp_path: Path) -> None:
    trading = trading_of(kafka.bootstrap, SMALL)
    with (
        BankFleet(kafka.bootstrap, tmp_path) as fleet,
        processing(Topology.load(TOPOLOGY), kafka.bootstrap, tmp_path, heartbeat_interval_ms=200),
    ):
        fleet.wait_opened()
        play = Play(kafka.bootstrap, fleet, trading, spark, SMALL)
        play.play({"node killed": faults_of_fleet(fleet, SMALL.frozen_s)["node killed"]})
    show(play.readers)
    check(play.readers, SMALL)


@pytest.mark.feature("reads-one-batch")
@pytest.mark.long
@pytest.mark.timeout(5_400)
def test_a_million_pairs_are_each_of_one_batch_and_as_new_as_plain_ones(tmp_path: Path, spark: SparkSession) -> None:
    run_at(FULL, tmp_path, spark)


def run_at(size: Size, directory: Path, spark: SparkSession) -> None:
    """Have executors, a driver, nodes and routers die while the bank is read, and compare ages, too."""
    with EmbeddedKafka() as broker, SparkCluster(directory / "spark") as cluster:
        trading = trading_of(broker.bootstrap, size)
        program = process_on(cluster.url)
        driver = ProcessorProcess(TOPOLOGY, broker.bootstrap, directory, program=program, env=ENVIRONMENT)
        with BankFleet(broker.bootstrap, directory) as fleet:
            driver.start()
            try:
                driver.wait_for("batch committed", 1, OPENED_S)
                fleet.wait_opened()
                play = Play(broker.bootstrap, fleet, trading, spark, size)
                try:
                    play.play(faults_of_fleet(fleet, size.frozen_s) | faults_of_spark(driver, cluster))
                finally:
                    show(play.readers)
            finally:
                if driver.is_running:
                    driver.stop()
    check(play.readers, size)
    tallies = play.readers.tallies.items()
    newest, plain = (joined(each for (_, name), each in tallies if name == of) for of in (BOTH, PLAIN))
    for of_newest, of_plain in zip(ages_ms(newest), ages_ms(plain), strict=True):
        assert of_newest <= 1.2 * of_plain
