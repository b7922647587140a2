"""Moments while a Spark application's fleet goes from the last release to this version, processor and all.

The last release has no moments: its nodes and routers ignore who asks for one, and its sink writes no header. An answer
is either of a batch, and right, or refused with a reason that says why. All else is answered as ever.
"""

from __future__ import annotations

import json
import random
import re
import signal
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest
import structlog

from processor.reports.commits import StoreChangelog
from processor.spark.checkpoint import parse_offsets
from statehouse.client import Answer, Client, Freshness, Lookup, MomentBound, MomentToken
from statehouse.client.conversion import from_get
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from tests.e2e.conftest import is_settled
from tests.integration.processor.counters import EVENTS, STORE, application_id
from tests.integration.processor.support import ProcessorProcess
from tests.support.batches import BatchWriter, Placed
from tests.support.chaos import NumberFeed
from tests.support.fleet import THIS, Build, Fleet, Servers
from tests.support.kafka import create_topic
from tests.support.lookups import LookupLoad
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until
from tests.upgrades.builds import last_release

log = structlog.get_logger(__name__)

TOPOLOGY: Final = "tests.integration.processor.counters"
PARTITIONS, NUMBER, PER_S, LOOKUPS_PER_S = 2, 30, 50, 20
KEYS: Final = [f"key-{number}" for number in range(NUMBER)]
PAGE: Final = 7
BATCHES: Final = 3
"""So many are waited for after a processor's start."""
BATCHES_S: Final = 0.3
"""Between batches that are written without Spark."""
RELEASED, NEW = "the released router", "the new router"
CALL_S: Final = 10.0
WITHIN_S: Final = 240.0
OF_NEWEST: Final = Freshness(moment=MomentBound())
UNAVAILABLE: Final = re.compile("of an earlier version|earlier versions never do")
"""What a refusal says where something of the last release is in the way."""

Entries = Mapping[str, Any]
Shown = tuple[Entries, MomentToken]


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a moment, and what came of it: entries as of a batch, or a failure."""

    through: str
    sort: str
    shown: Shown | None = None
    failure: LookupFailure | None = None

    def __str__(self) -> str:
        return f"{self.sort} through {self.through}: {self.failure or self.shown}"


def _keys(client: Client) -> Shown:
    with client.moment() as moment:
        outcomes = moment.batch_get([Lookup(STORE, key) for key in KEYS])
        entries = {}
        for key, outcome in zip(KEYS, outcomes, strict=True):
            if not isinstance(outcome, Answer):
                raise outcome
            if outcome.found:
                entries[key] = outcome.value
        return entries, moment.moment


def _one_by_one(client: Client) -> Shown:
    with client.moment() as moment:
        return {key: moment.get(STORE, key).value for key in KEYS}, moment.moment


def _scan(client: Client) -> Shown:
    with client.moment() as moment:
        return {str(entry.key): entry.value for entry in moment.scan(STORE, page_size=PAGE)}, moment.moment


def _pages(client: Client) -> Shown:
    """Only the pages' tokens hold such a walk together."""
    pages = list(client.pages(STORE, page_size=PAGE, freshness=OF_NEWEST))
    (moment,) = {page.moment for page in pages}
    assert moment is not None
    return {str(entry.key): entry.value for page in pages for entry in page.entries}, moment


def _batch(client: Client) -> Shown:
    with client.watch_batches(STORE) as batches:
        batch = next(batches)
    assert all(update.begins for update in batch.updates[:1])
    return {str(each.key): each.value for update in batch.updates for each in update.changes}, batch.moment


SORTS: Final[Mapping[str, Callable[[Client], Shown]]] = {
    "keys": _keys,
    "keys one by one": _one_by_one,
    "a scan": _scan,
    "pages": _pages,
    "a batch of a watch": _batch,
}


class Fed(ABC):
    """Two nodes and two routers, and what feeds their store. One router is of the last release to the end.

    Each router has lookups at a steady rate, and clients that ask it, or by what it says nodes.
    """

    def __init__(self, servers: Servers, released: Build) -> None:
        self.servers, self.released = servers, released
        self._open = ExitStack()
        self.reads: list[Read] = []

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _begin(self) -> None:
        self._open.enter_context(self.servers)
        self._open.enter_context(self._feeding())
        self.servers.build = self.released
        self.nodes = {name: self.servers.node(name) for name in ("n1", "n2")}
        self.routers = {RELEASED: self.servers.router("r1")}
        self.servers.build = THIS
        self.routers[NEW] = self.servers.router("r2")
        self._control = self._open.enter_context(Client(self.routers[NEW].target, direct=False))
        poll_until(self._is_complete, WITHIN_S, "all keys to be there")
        self._clients = {
            f"{name}{' and straight to nodes' if direct else ''}": self._open.enter_context(
                Client(router.target, direct=direct, timeout=CALL_S)
            )
            for name, router in self.routers.items()
            for direct in (False, True)
        }
        self.loads = [
            self._open.enter_context(LookupLoad(router.target, STORE, KEYS, LOOKUPS_PER_S, CALL_S))
            for router in self.routers.values()
        ]

    @abstractmethod
    def _feeding(self) -> AbstractContextManager[object]:
        """Return a context in which what the last release's processor writes is written."""

    @abstractmethod
    def update_processor(self, build: Build) -> None:
        """Go on with what a version's processor writes, and wait for some batches."""

    @abstractmethod
    def events(self) -> Mapping[tuple[str, int], int]:
        """Return how many events there were up to each batch's end, by query and batch."""

    @abstractmethod
    def _sums(self) -> Mapping[str, Sequence[int]]:
        """Return, by key, what its first 0, 1, 2 ... events add up to."""

    def update_node(self, name: str, build: Build) -> None:
        """Replace a node, as the page on upgrades says."""
        node = self.nodes[name]
        assert node.stop(signal.SIGTERM, 60.0) == 0, node.log[-3000:]
        node.build = build
        node.start()
        poll_until(lambda: len(node.node().tasks) == PARTITIONS and is_settled(self._control), WITHIN_S, f"{name}")

    def _is_complete(self) -> bool:
        try:
            return is_settled(self._control) and self._control.count(STORE, exact=True).count == NUMBER
        except LookupFailure:
            return False

    def look(self, routers: Iterable[str] = ("",)) -> list[Read]:
        """Read a moment in every way, through the routers whose names begin so; note it. Plain reads go beside."""
        found = []
        for name, client in self._clients.items():
            if not name.startswith(tuple(routers)):
                continue
            self._check({str(each.key): each.value for each in client.scan(STORE, page_size=PAGE)})
            for sort, read in SORTS.items():
                try:
                    found.append(Read(name, sort, shown=read(client)))
                except LookupFailure as failure:
                    found.append(Read(name, sort, failure=failure))
        self.reads += found
        return found

    def shows_all(self, after: int = -1) -> bool:
        """Whether all reads through the new router show a batch later than one."""
        return newest_shown(self.look([NEW])) > after

    def _check(self, entries: Entries) -> None:
        """Check what a read shows: of each key what its first events add up to."""
        assert entries.keys() == set(KEYS)
        for key, value in entries.items():
            self._check_value(key, value)

    def _check_value(self, key: str, value: Any) -> None:
        sums = self._sums()[key]
        assert 0 < value["count"] < len(sums), f"{key}: {value}"
        assert sums[value["count"]] == value["sum"], f"{key}: {value}"

    def check(self) -> Counter[str]:
        """Check all lookups, and that each moment that was shown is the batch that it names; return what was shown."""
        for load in self.loads:
            assert load.failures == []
            for lookup in load.answers():
                assert lookup.response is not None
                self._check_value(lookup.key, from_get(lookup.response, STORE).value)
        events = self.events()
        shown: Counter[str] = Counter()
        for read in self.reads:
            if read.shown is None:
                continue
            entries, moment = read.shown
            self._check(entries)
            ((query_id, batch_id),) = [(query_id, moment.batch(query_id)) for query_id in moment]
            assert batch_id is not None
            counted = sum(value["count"] for value in entries.values())
            assert counted == events[query_id, batch_id], f"{read}: the batch ends after another event"
            shown[read.through] += 1
        return shown


class BySpark(Fed):
    """The store is fed by each version's own processor, with Spark."""

    def __init__(self, broker: EmbeddedKafka, directory: Path, released: Build) -> None:
        servers = Servers(broker.bootstrap, application_id, directory, heartbeat_interval_ms=1_000)
        super().__init__(servers, released)
        create_topic(broker.bootstrap, EVENTS, PARTITIONS)
        self._feed = NumberFeed(broker.bootstrap, EVENTS, PARTITIONS, NUMBER, PER_S, seed=1)
        self._processor = self._processor_of(released)

    @contextmanager
    def _feeding(self) -> Iterator[None]:
        self._feed.allow(10**9)
        with self._feed:
            self._processor.start()
            try:
                yield
            finally:
                if self._processor.is_running:
                    self._processor.kill()

    def _processor_of(self, build: Build) -> ProcessorProcess:
        env = {"PYTHONPATH": f"{build.root}:{THIS.root}"}
        return ProcessorProcess(TOPOLOGY, self.servers.bootstrap, self.servers.directory, env=env, tree=build.root)

    def _is_complete(self) -> bool:
        self._supervise()
        return super()._is_complete()

    def update_processor(self, build: Build) -> None:
        assert self._processor.stop() == 0, self._processor.log_tail()
        self._processor = self._processor_of(build)
        self._processor.start()
        poll_until(self._goes_on, WITHIN_S, f"{BATCHES} batches of {build.name}")

    def _goes_on(self) -> bool:
        self._supervise()
        return len(self._processor.events("batch committed")) >= BATCHES

    def _supervise(self) -> None:
        """Start the processor again if it has ended, as its supervisor does: a busy broker may end one that starts."""
        if not self._processor.is_running:
            log.warning("the processor ended", log_tail=self._processor.log_tail())
            self._processor.start()

    def events(self) -> Mapping[tuple[str, int], int]:
        # The commits topic is compacted.
        checkpoint = self._processor.checkpoint / application_id / STORE
        query_id = json.loads((checkpoint / "metadata").read_text())["id"]
        return {
            (query_id, int(file.name)): sum(parse_offsets(file.read_text()).values())
            for file in (checkpoint / "offsets").iterdir()
            if file.name.isdigit()
        }

    def _sums(self) -> Mapping[str, Sequence[int]]:
        return self._feed.sums


class ByWriters(Fed):
    """The store is fed as each version's sink writes, without Spark."""

    def __init__(self, broker: EmbeddedKafka, directory: Path, released: Build) -> None:
        self._fleet = Fleet(
            broker.bootstrap,
            application_id,
            directory,
            partitions=PARTITIONS,
            value_serde="json",
            committed=True,
            heartbeat_interval_ms=1_000,
        )
        super().__init__(self._fleet, released)
        self._changelog = StoreChangelog(STORE, self._fleet.changelog, PARTITIONS)
        self._rng = random.Random(1)
        self._by_key = {key: [0] for key in KEYS}
        self._events: list[int] = []  # up to the end of each batch
        self._writing = threading.Lock()

    @contextmanager
    def _feeding(self) -> Iterator[None]:
        self._writer = self._writer_of(self.released)
        self._write(KEYS)
        self._place("n1", "n2")
        try:
            with Meanwhile(self._write_on, "batches").going_on():
                yield
        finally:
            self._writer.close()

    def _place(self, *nodes: str) -> None:
        """Have each node be active for partitions in turn, and the other one stand by."""
        holders = [TaskAssignment(node, tuple({"n1", "n2"} - {node})) for node in nodes]
        self._fleet.assign(*(holders[each % len(holders)] for each in range(PARTITIONS)))

    def _writer_of(self, build: Build) -> BatchWriter:
        last = len(self._events) - 1 if self._events else None
        return BatchWriter(
            self._fleet.bootstrap,
            application_id,
            [self._changelog],
            "query",
            query=STORE,
            last=last,
            has_moments=build is THIS,
        )

    def _write_on(self, stop: threading.Event) -> None:
        while not stop.wait(BATCHES_S):
            with self._writing:
                self._write(self._rng.sample(KEYS, NUMBER // 3))

    def _write(self, keys: Sequence[str]) -> None:
        records = []
        for key in keys:
            sums = self._by_key[key]
            sums.append(sums[-1] + self._rng.randrange(-1000, 1000))
            value = json.dumps({"count": len(sums) - 1, "sum": sums[-1]}).encode()
            records.append(Placed(STORE, self._fleet.partition_of(key), key.encode(), value))
        self._writer.write(len(self._events), records)
        self._events.append(sum(len(sums) - 1 for sums in self._by_key.values()))

    def update_node(self, name: str, build: Build) -> None:
        self._place(*({"n1", "n2"} - {name}))
        super().update_node(name, build)
        self._place("n1", "n2")

    def update_processor(self, build: Build) -> None:
        with self._writing:
            self._writer.close()
            self._writer = self._writer_of(build)
        before = len(self._events)
        poll_until(lambda: len(self._events) >= before + BATCHES, WITHIN_S, "batches")

    def events(self) -> Mapping[tuple[str, int], int]:
        return {("query", batch_id): events for batch_id, events in enumerate(self._events)}

    def _sums(self) -> Mapping[str, Sequence[int]]:
        return self._by_key


def assert_refused(reads: Iterable[Read]) -> None:
    for read in reads:
        assert read.failure is not None, str(read)
        assert read.failure.reason is Reason.MOMENTS_UNAVAILABLE, str(read)
        assert UNAVAILABLE.search(str(read.failure)), str(read)


def newest_shown(reads: Iterable[Read]) -> int:
    """Return the newest batch that all these reads, or later ones, have shown."""
    return min(
        -1 if read.shown is None else max(read.shown[1].batch(query) or 0 for query in read.shown[1]) for read in reads
    )


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("feeds", [ByWriters, BySpark])
def test_a_moment_is_shown_by_nodes_that_know_moments_or_refused_with_the_reason(
    feeds: type[ByWriters | BySpark], tmp_path: Path
) -> None:
    """And what isn't of a moment is answered throughout, whichever release wrote it."""
    released = last_release(tmp_path)
    with EmbeddedKafka() as broker, feeds(broker, tmp_path, released) as fed:
        assert_refused(fed.look())
        fed.update_node("n1", THIS)
        assert_refused(fed.look())
        fed.update_processor(THIS)
        poll_until(fed.shows_all, WITHIN_S, "the new node to answer all reads of a moment")
        fed.look()
        fed.update_node("n2", THIS)
        poll_until(fed.shows_all, WITHIN_S, "both nodes to answer all reads of a moment")
        newest = newest_shown(fed.look([NEW]))
        # And back: a batch without headers is none that can be shown.
        fed.update_processor(released)
        fed.look()
        fed.update_processor(THIS)
        poll_until(lambda: fed.shows_all(newest), WITHIN_S, "later moments")
        fed.look()
        shown = fed.check()
    refusals = Counter((read.through, read.failure.reason.name) for read in fed.reads if read.failure is not None)
    lookups = [len(load.answers()) for load in fed.loads]
    log.info("moments beside the last release", shown=shown, refusals=refusals, lookups=lookups)
    allowed = {Reason.MOMENTS_UNAVAILABLE, Reason.MOMENT_NOT_REACHED, Reason.MOMENT_GONE}
    assert {read.failure.reason for read in fed.reads if read.failure is not None} <= allowed
