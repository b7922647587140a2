"""A bank, read while it trades and while things break: all that a moment shows is one batch, whatever it is asked for.

Its batches are written as a processor's sink writes them. What each of them was is known, so an answer is not only
compared with itself: it must be the batch that it names.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from processor.reports.commits import StoreChangelog
from statehouse.client import Client
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.support.bank import (
    ACCOUNTS,
    BATCH,
    GROUPS,
    NUMBER,
    SUMS,
    TOTAL,
    Asked,
    Bank,
    Seen,
    group_of,
    members,
    pair_of,
)
from tests.support.bank_readers import Doors, Readers, Sort, is_web_up
from tests.support.batches import BatchWriter
from tests.support.fleet import Fleet, ServerProcess
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until

PARTITIONS = 8
QUERY = "bank"
BATCHES_S: Final = 0.05
"""Between the beginnings of batches."""
READS: Final = 8
"""Of each sort, in each of the parts of the test."""


class TradingBank:
    """The bank, whose batches are written on a thread, and who runs its stores."""

    def __init__(self, fleet: Fleet, changelog_config: Mapping[str, str] | None = None) -> None:
        self.fleet, self.bank = fleet, Bank(PARTITIONS)
        fleet.stores = MappingProxyType({})
        for store in (ACCOUNTS, SUMS):
            fleet.add_store(store, changelog_config, value_serde="long", committed=True)
        self._changelogs = [
            StoreChangelog(each.name, each.changelog_topic, PARTITIONS) for each in fleet.stores.values()
        ]
        self._writer = self._new_writer(None)
        self.newest = -1
        """The newest batch that is reported."""
        self._kill, self._is_dead, self._follow = threading.Event(), threading.Event(), threading.Event()
        self._work = Meanwhile(self._trade, "bank")

    @property
    def defect(self) -> Exception | None:
        """What its thread has raised."""
        return self._work.defect

    def _new_writer(self, last: int | None) -> BatchWriter:
        return BatchWriter(self.fleet.bootstrap, self.fleet.application_id, self._changelogs, QUERY, last=last)

    def open(self) -> None:
        """Write the first batch."""
        self._write(0)

    def _write(self, batch_id: int) -> None:
        records = self.bank.records(batch_id)
        if self._kill.is_set():
            self._writer.write_half(batch_id, records)
            self._writer.close()
            self._is_dead.set()
            assert self._follow.wait(60.0)
            self._writer = self._new_writer(self.newest)
            self._kill.clear()
            self._is_dead.clear()
            self._follow.clear()
        self._writer.write(batch_id, records)
        self.newest = batch_id

    def kill_writer(self, meanwhile: Callable[[], bool]) -> bool:
        """Have it die in the middle of a batch; then its successor runs the batch again. Return what was meanwhile."""
        self._kill.set()
        poll_until(lambda: self.defect is not None or self._is_dead.is_set(), 60, "its death")
        try:
            return meanwhile()
        finally:
            self._follow.set()
            poll_until(lambda: self.defect is not None or not self._kill.is_set(), 60, "a successor")

    def _trade(self, stop: threading.Event) -> None:
        due_at = time.monotonic()
        while not stop.wait(max(0.0, due_at - time.monotonic())):
            due_at = max(due_at, time.monotonic() - BATCHES_S) + BATCHES_S
            self._write(self.newest + 1)

    @contextmanager
    def trading(self) -> Iterator[None]:
        """Trade meanwhile."""
        try:
            with self._work.going_on():
                yield
        finally:
            self._writer.close()

    def is_batch(self, seen: Seen) -> bool:
        """Whether what is shown is what the batch that it names had of what was asked for."""
        assert seen.batch is not None
        state = self.bank.states[seen.batch]
        return seen.shown == {
            store: {key: state[store][key] for key in keys if key in state[store]} for store, keys in seen.asked.items()
        }


def sorts_of(doors: Doors) -> dict[str, Sort]:
    """Return how the bank is read: every way is of the newest moment."""
    return {
        "pairs by the router": Sort(lambda rng: doors.of_moment(doors.routed, _pair(rng))),
        "pairs by nodes": Sort(lambda rng: doors.of_moment(doors.direct, _pair(rng))),
        "pairs by HTTP": Sort(lambda rng: doors.by_http(_pair(rng))),
        "whole scans": Sort(lambda _rng: doors.scanned()),
        "both stores": Sort(lambda rng: doors.of_moment(doors.direct, _group(rng))),
    }


def _pair(rng: random.Random) -> Asked:
    return {ACCOUNTS: pair_of(rng.randrange(NUMBER // 2))}


def _group(rng: random.Random) -> Asked:
    group = members(rng.randrange(GROUPS))
    return {ACCOUNTS: group, SUMS: [group_of(group[0]), BATCH]}


def is_torn(target: str, within_s: float = 5.0) -> bool:
    """Whether all accounts together are seen in the middle of a batch by a read that asks for no moment."""
    with Client(target, timeout=5.0) as client:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            if sum(entry.value for entry in client.scan(ACCOUNTS, page_size=7)) != TOTAL:
                return True
    return False


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("bank"), tmp_path, partitions=PARTITIONS) as fleet:
        yield fleet


@pytest.mark.feature("reads-one-batch")
@pytest.mark.timeout(240)
def test_every_moment_is_the_batch_that_it_names(fleet: Fleet) -> None:
    trading, port = TradingBank(fleet), free_port()
    nodes: dict[str, ServerProcess] = {name: fleet.node(name) for name in ("n1", "n2")}
    router = fleet.router(http_port=port)
    trading.open()
    fleet.assign(*[TaskAssignment(*pair) for pair in (("n1", ("n2",)), ("n2", ("n1",)))] * (PARTITIONS // 2))
    fleet.wait_running(nodes.values(), 120.0)
    address = f"http://{LOOPBACK}:{port}"
    doors = Doors(router.target, [address])
    readers = Readers(sorts_of(doors), trading.is_batch)
    more = dict.fromkeys(readers.sorts, READS)
    with Client(router.target, timeout=30.0) as client, client.moment() as moment:
        poll_until(lambda: _is_opened(moment), 30, "the first batch")
        poll_until(lambda: is_web_up(address), 60, "the web process")
    with closing(doors), trading.trading(), readers.reading():
        readers.wait(more, 60)
        # The half batch may happen to be of whole transfers.
        assert any(trading.kill_writer(partial(is_torn, router.target)) for _ in range(5)), "what are moments for?"
        readers.wait(more, 60)
        nodes["n2"].kill()
        readers.wait(more, 60)
        nodes["n2"].start()
        fleet.wait_running([nodes["n2"]], 60.0)
        readers.wait(more, 60)
        nodes["n1"].freeze()
        readers.wait(more, 60)
        nodes["n1"].thaw()
        readers.wait(more, 60)
    assert not readers.torn
    assert not readers.failed
    assert trading.newest > 3


def _is_opened(moment: Any) -> bool:
    try:
        return len(list(moment.scan(ACCOUNTS))) == NUMBER
    except LookupFailure:
        return False
