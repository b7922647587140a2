"""Watches by moment on a real fleet: each batch comes whole and once, whatever breaks meanwhile and where it resumes.

The bank's batches are known, so what a watcher has after one isn't only compared with itself: it must be that batch.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

import pytest

from processor.reports.commits import StoreChangelog
from statehouse.client import Batch, BatchWatch, Client
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.query_service.test_moments_bank import PARTITIONS, QUERY, TradingBank
from tests.support.bank import ACCOUNTS, TOTAL
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import Fleet, ServerProcess
from tests.support.polling import poll_until

BATCHES = 5
"""What is waited for in each part of the test."""


class Follower:
    """Applies whole batches, and checks what it has after each. `resumes`: it leaves now and then, and goes on."""

    def __init__(self, trading: TradingBank, target: str, name: str, *, resumes: bool) -> None:
        self._trading, self._target, self._resumes = trading, target, resumes
        self._accounts: dict[int, dict[str, int]] = {}
        self.shown: list[int] = []
        self.restarts = 0
        self.gaps = 0
        self._token: str | None = None
        self._batches: BatchWatch | None = None
        self._random = random.Random(name)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name=name)
        self.defect: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._batches is not None:
            with suppress(LookupFailure):  # it may have left already
                self._batches.close()
        self._thread.join(30.0)
        if self.defect is not None:
            raise self.defect
        assert not self._thread.is_alive()

    def wait(self, count: int, timeout_s: float = 60.0) -> None:
        before = len(self.shown)
        what = f"batches of {self._thread.name} after {self.shown[-3:]}, {self._trading.newest}"
        poll_until(lambda: self.defect or self._trading.defect or len(self.shown) >= before + count, timeout_s, what)
        if self._trading.defect is not None:
            raise self._trading.defect

    def _follow(self) -> None:
        try:
            while not self._stop.is_set():
                with Client(self._target) as client, client.watch_batches(ACCOUNTS, after=self._token) as batches:
                    self._batches = batches
                    self._apply(batches)
        except Exception as error:  # noqa: BLE001 - raised where it ends
            self.defect = error

    def _apply(self, batches: BatchWatch) -> None:
        try:
            for batch in batches:
                self._take(batch)
                self._token = batch.token
                if self._stop.is_set() or (self._resumes and self._random.random() < 0.2):
                    break
        except LookupFailure as failure:
            assert failure.reason in {Reason.UNREACHABLE, Reason.ROUTING_NOT_READY}, failure  # noqa: PT017 - it was killed
        self.restarts += 1

    def _take(self, batch: Batch) -> None:
        offsets: dict[int, int] = {}
        for update in batch.updates:
            if update.begins:
                self.gaps += update.gap
                self._accounts[update.partition] = {}
            accounts = self._accounts[update.partition]
            for change in update.changes:
                assert isinstance(change.key, str)
                if change.offset is not None:
                    assert change.offset > offsets.get(update.partition, -1), "repeated"
                    offsets[update.partition] = change.offset
                if change.deleted:
                    accounts.pop(change.key, None)
                else:
                    assert isinstance(change.value, int)
                    accounts[change.key] = change.value
        batch_id = batch.moment.batch(QUERY)
        assert batch_id is not None
        if self.shown:
            assert batch_id > self.shown[-1], "an earlier batch"
        self.shown.append(batch_id)
        has = {account: balance for part in self._accounts.values() for account, balance in part.items()}
        assert has == self._trading.bank.states[batch_id][ACCOUNTS], f"batch {batch_id} is torn"
        assert sum(has.values()) == TOTAL


@contextmanager
def following(*followers: Follower) -> Iterator[None]:
    for each in followers:
        each.__enter__()
    try:
        yield
    finally:
        for each in followers:
            each.__exit__()


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("batches"), tmp_path, partitions=PARTITIONS) as fleet:
        yield fleet


class Anew:
    """A store with a key in each partition, whose batches may begin anew; a value is the run and the batch."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        fleet.stores = MappingProxyType({})
        fleet.add_store(ACCOUNTS, committed=True)
        self._changelog = StoreChangelog(ACCOUNTS, fleet.stores[ACCOUNTS].changelog_topic, PARTITIONS)
        self._runs = 0
        self._writer: BatchWriter | None = None

    def begin(self, query_id: str) -> None:
        """Begin with batch 0, as with a checkpoint that knows of no batch."""
        self.close()
        application_id = self._fleet.application_id
        self._writer = BatchWriter(self._fleet.bootstrap, application_id, [self._changelog], query_id)
        self._writer._next = [0] * PARTITIONS
        self._runs += 1

    def write(self, *batches: int) -> None:
        assert self._writer is not None
        for batch_id in batches:
            value = self._value(batch_id).encode()
            self._writer.write(batch_id, [Placed(ACCOUNTS, each, b"p%d" % each, value) for each in range(PARTITIONS)])

    def _value(self, batch_id: int) -> str:
        return f"{self._runs}:{batch_id}"

    def check_up_to(self, last: int, query_id: str, first: Batch, following: BatchWatch) -> None:
        """Check each batch up to one: it has what is new since the one before."""
        batch, before = first, -1
        while True:
            batch_id = batch.moment.batch(query_id)
            assert batch_id is not None
            assert batch_id > before
            newest = {update.partition: update.changes[-1].value for update in batch.updates}
            assert newest == dict.fromkeys(range(PARTITIONS), self._value(batch_id))
            if batch_id == last:
                return
            batch, before = next(following), batch_id

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("query_id", ["another", QUERY])
def test_a_watch_whose_batches_began_anew_does_not_go_on_as_if_nothing_were_missing(
    fleet: Fleet, query_id: str
) -> None:
    """`query_id`: of the checkpoint that a new one has replaced, or of one in which only the batches' ids are lost."""
    anew = Anew(fleet)
    nodes = [fleet.node(name) for name in ("n1", "n2")]
    router = fleet.router()
    anew.begin(QUERY)
    anew.write(*range(6))
    fleet.assign(*[TaskAssignment("n1", ("n2",))] * PARTITIONS)
    fleet.wait_running(nodes, 60.0)
    with Client(router.target) as client, client.watch_batches(ACCOUNTS) as live:
        token = poll_until(lambda: _opened(client), 30, "the newest batch").token
        assert next(live).moment.batch(QUERY) is not None
        anew.begin(query_id)
        anew.write(0, 1, 2)
        with pytest.raises(LookupFailure, match="began anew") as ended:
            for _ in live:
                pass
        assert ended.value.reason is Reason.MOMENT_GONE
        with client.watch_batches(ACCOUNTS, after=token) as batches:
            if query_id == QUERY:
                with pytest.raises(LookupFailure, match="began anew") as refused:
                    next(batches)
                assert refused.value.reason is Reason.MOMENT_GONE
            else:
                first = next(batches)
                assert all(update.begins and update.gap for update in first.updates), "it says what may be missing"
                anew.write(3, 4)
                anew.check_up_to(4, query_id, first, batches)
        with client.watch_batches(ACCOUNTS) as batches:
            first = next(batches)
            assert all(update.begins and not update.gap for update in first.updates)
            anew.write(5, 6)
            anew.check_up_to(6, query_id, first, batches)
    anew.close()


def _opened(client: Client) -> Batch | None:
    try:
        with client.watch_batches(ACCOUNTS) as batches:
            return next(batches)
    except LookupFailure:
        return None


@pytest.mark.feature("watch-batches-whole")
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("lag_ms", "is_whole"), [pytest.param("600000", True), pytest.param("0", False, marks=pytest.mark.long)]
)
def test_every_batch_comes_whole_and_once(fleet: Fleet, lag_ms: str, is_whole: bool) -> None:
    """`is_whole`: nodes can prove that the log has all changes."""
    trading = TradingBank(fleet, {"min.compaction.lag.ms": lag_ms})
    nodes: dict[str, ServerProcess] = {name: fleet.node(name) for name in ("n1", "n2")}
    router = fleet.router()
    trading.open()
    fleet.assign(*[TaskAssignment(*pair) for pair in (("n1", ("n2",)), ("n2", ("n1",)))] * (PARTITIONS // 2))
    fleet.wait_running(nodes.values(), 120.0)
    steady = Follower(trading, router.target, "steady", resumes=False)
    resuming = Follower(trading, router.target, "resuming", resumes=True)
    followers = (steady, resuming)
    with trading.trading(), following(*followers):
        for each in followers:
            each.wait(BATCHES)
        trading.kill_writer(lambda: True)
        for each in followers:
            each.wait(BATCHES)
        nodes["n2"].kill()
        for each in followers:
            each.wait(BATCHES)
        nodes["n2"].start()
        fleet.wait_running([nodes["n2"]], 60.0)
        nodes["n1"].freeze()
        for each in followers:
            each.wait(BATCHES)
        nodes["n1"].thaw()
        router.kill()
        router.start()
        for each in followers:
            each.wait(BATCHES)
    for each in followers:
        assert each.restarts > 0
        if is_whole:
            assert each.shown == list(range(each.shown[0], each.shown[-1] + 1)), "none is left out, or with another"
    assert (steady.gaps + resuming.gaps == 0) == is_whole, "what nodes can't prove is given anew"
