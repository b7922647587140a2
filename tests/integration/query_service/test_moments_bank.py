"""A bank, read while it trades and while things break: all that a moment shows is one batch, whatever it is asked for.

Its batches are written as a processor's sink writes them. What each of them was is known, so an answer is not only
compared with itself: it must be the batch that it names.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import httpx
import pytest

from processor.reports.commits import StoreChangelog
from statehouse.client import Answer, Client, Lookup
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.moments import MomentToken
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.support.bank import ACCOUNTS, BATCH, NUMBER, SUMS, TOTAL, Bank, group_of, members, pair_of
from tests.support.batches import BatchWriter
from tests.support.fleet import Fleet, ServerProcess
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until

PARTITIONS = 8
QUERY = "bank"
ANSWERED_WITHIN_S: Final = 2.0
CALL_S: Final = 1.0
BATCHES_S: Final = 0.05
"""Between the beginnings of batches."""
READS_S: Final = 0.05
"""Between reads of a sort."""
READS: Final = 8
"""Of each sort, in each of the parts of the test."""

Shown = Mapping[str, Mapping[str, int]]
"""What a read has shown, by store and key."""


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

    def is_batch(self, shown: Shown, batch_id: int, asked: Mapping[str, Sequence[str]]) -> bool:
        """Whether what is shown is what a batch had of what was asked for."""
        state = self.bank.states[batch_id]
        return shown == {
            store: {key: state[store][key] for key in keys if key in state[store]} for store, keys in asked.items()
        }


class Readers:
    """Read in threads, one for each sort of read, and note what was torn and what was not answered in time."""

    def __init__(self, trading: TradingBank, target: str, http: str) -> None:
        self._trading, self._http = trading, http
        self._routed, self._direct = Client(target, direct=False, timeout=CALL_S), Client(target, timeout=CALL_S)
        self.counts: Counter[str] = Counter()
        self.torn: list[str] = []
        self.failed: list[str] = []
        self._stop = threading.Event()
        sorts: dict[str, Callable[[random.Random], bool]] = {
            "pairs by the router": lambda rng: self._keys(self._routed, _pair(rng)),
            "pairs by nodes": lambda rng: self._keys(self._direct, _pair(rng)),
            "pairs by HTTP": self._http_pair,
            "whole scans": lambda _rng: self._scan(),
            "both stores": lambda rng: self._keys(self._direct, _group(rng)),
        }
        self.sorts = tuple(sorts)
        self._threads = [
            threading.Thread(target=self._read_on, args=(sort, read), name=sort) for sort, read in sorts.items()
        ]
        self._defects: list[Exception] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read meanwhile."""
        for each in self._threads:
            each.start()
        try:
            yield
        finally:
            self._stop.set()
            for each in self._threads:
                each.join(30.0)
            self._routed.close()
            self._direct.close()
        for defect in self._defects:
            raise defect

    def wait(self, count: int, timeout_s: float = 60.0) -> None:
        """Wait for so many more answers of each sort."""
        before = Counter(self.counts)

        def have_come() -> bool:
            return bool(self._defects) or all(self.counts[each] >= before[each] + count for each in self.sorts)

        poll_until(have_come, timeout_s, f"answers: {dict(self.counts)}, failed: {self.failed[:3]}")

    def _read_on(self, sort: str, read: Callable[[random.Random], bool]) -> None:
        rng = random.Random(sort)
        try:
            while not self._stop.wait(READS_S):
                self._read(sort, partial(read, rng))
        except Exception as error:  # noqa: BLE001 - raised where they end
            self._defects.append(error)

    def _read(self, sort: str, read: Callable[[], bool]) -> None:
        began = time.monotonic()
        failures: list[str] = []
        while True:
            try:
                is_whole = read()
            except (LookupFailure, httpx.HTTPError) as failure:
                failures.append(f"{sort} after {time.monotonic() - began:.2f} s: {failure}")
                if time.monotonic() - began > ANSWERED_WITHIN_S:
                    self.failed.append("; ".join(failures[-2:]))
                    return
            else:
                self.counts[sort] += 1
                if not is_whole:
                    self.torn.append(sort)
                if time.monotonic() - began > ANSWERED_WITHIN_S:
                    self.failed.append(f"{sort} took {time.monotonic() - began:.2f} s: {failures[-1:]}")
                return

    def _keys(self, client: Client, asked: Mapping[str, Sequence[str]]) -> bool:
        places = [(store, key) for store, keys in asked.items() for key in keys]
        shown: dict[str, dict[str, int]] = {store: {} for store in asked}
        with client.moment() as moment:
            outcomes = moment.batch_get([Lookup(*place) for place in places])
            for (store, key), outcome in zip(places, outcomes, strict=True):
                if not isinstance(outcome, Answer):
                    raise outcome
                if outcome.found:
                    shown[store][key] = outcome.value
            return self._is_whole(shown, moment.moment, asked)

    def _scan(self) -> bool:
        with self._routed.moment() as moment:
            shown = {entry.key: entry.value for entry in moment.scan(ACCOUNTS, page_size=7)}
            return self._is_whole({ACCOUNTS: shown}, moment.moment, {ACCOUNTS: [str(each) for each in range(NUMBER)]})

    def _http_pair(self, rng: random.Random) -> bool:
        asked = _pair(rng)
        answer = httpx.post(
            f"{self._http}/v1/stores/{ACCOUNTS}/batch",
            params={"moment": "newest"},
            json={"keys": asked[ACCOUNTS]},
            timeout=CALL_S,
        )
        answer.raise_for_status()
        body: dict[str, Any] = answer.json()
        for each in body["results"]:
            if each["status"] not in {200, 404} or "found" not in each:
                raise httpx.HTTPError(str(each))
        shown = {each["key"]: each["value"] for each in body["results"] if each["found"]}
        return self._is_whole({ACCOUNTS: shown}, MomentToken.parse(body["moment"]), asked)

    def _is_whole(self, shown: Shown, moment: MomentToken, asked: Mapping[str, Sequence[str]]) -> bool:
        batch_id = moment.batch(QUERY)
        assert batch_id is not None
        return self._trading.is_batch(shown, batch_id, asked)


def _pair(rng: random.Random) -> dict[str, Sequence[str]]:
    return {ACCOUNTS: pair_of(rng.randrange(NUMBER // 2))}


def _group(rng: random.Random) -> dict[str, Sequence[str]]:
    group = members(rng.randrange(4))
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
    readers = Readers(trading, router.target, f"http://{LOOPBACK}:{port}")
    with Client(router.target, timeout=30.0) as client, client.moment() as moment:
        poll_until(lambda: _is_opened(moment), 30, "the first batch")
        poll_until(lambda: _is_up(f"http://{LOOPBACK}:{port}"), 60, "the web process")
    with trading.trading(), readers.reading():
        readers.wait(READS)
        # The half batch may happen to be of whole transfers.
        assert any(trading.kill_writer(partial(is_torn, router.target)) for _ in range(5)), "what are moments for?"
        readers.wait(READS)
        nodes["n2"].kill()
        readers.wait(READS)
        nodes["n2"].start()
        fleet.wait_running([nodes["n2"]], 60.0)
        readers.wait(READS)
        nodes["n1"].freeze()
        readers.wait(READS)
        nodes["n1"].thaw()
        readers.wait(READS)
    assert not readers.torn
    assert not readers.failed
    assert trading.newest > 3


def _is_opened(moment: Any) -> bool:
    try:
        return len(list(moment.scan(ACCOUNTS))) == NUMBER
    except LookupFailure:
        return False


def _is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/healthz", timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
