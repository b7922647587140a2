"""Two versions that apply the same events in batches of their own, on real nodes: how they differ, and their watchers.

What a processor writes is written here, so that every event, and everything that is planted, is known.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest

from processor.reports.commits import StoreChangelog
from statehouse.cli.exits import ExitCode
from statehouse.client import BatchWatch, Client, Update, Watch, WatchPosition
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.partitioning import partition_for
from statehouse.contract.version_names import FIRST, application_of, store_at, wire_version
from statehouse.errors import LookupFailure
from statehouse.kafka.version_record import change_versions
from statehouse.local.kafka import EmbeddedKafka
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import create_topic
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until
from tests.support.proxy import PROXY
from tests.support.statehouse import Ran, statehouse

BOARDS: Final = "boards"
PARTITIONS: Final = {FIRST: 4, "v2": 16}
SEED: Final = 44
KEPT_MS: Final = 2**52


class Version:
    """A version's nodes, and its processor's writes: it applies the events in batches of any size."""

    def __init__(self, bootstrap: str, name: str, version: str, events: list[str], topic: str, directory: Path) -> None:
        directory.mkdir()
        self.version, self._events, self._topic = version, events, topic
        self.fleet = Fleet(bootstrap, application_of(name, version), directory, partitions=PARTITIONS[version])
        self.fleet.stores = MappingProxyType({})
        self.fleet.add_store(BOARDS, committed=True, value_serde="json")
        changelog = StoreChangelog(BOARDS, self.fleet.stores[BOARDS].changelog_topic, self.fleet.partitions)
        query_id = store_at("query", wire_version(version))
        self._writer = BatchWriter(bootstrap, self.fleet.application_id, [changelog], query_id)
        self._random = random.Random(f"{SEED} {version}")
        self._counts: Counter[str] = Counter()
        self._applied, self._batch = 0, 0
        self._lock = threading.Lock()
        names = [f"{version}-a", f"{version}-b"]
        self.nodes = [self.fleet.node(each) for each in names]
        self.fleet.assign(
            *[TaskAssignment(names[each % 2], (names[1 - each % 2],)) for each in range(PARTITIONS[version])]
        )

    def apply(self, most: int) -> None:
        """Write a batch: each of its events raises its key's count."""
        with self._lock:
            taken = self._events[self._applied : self._applied + most]
            records = []
            for key in taken:
                self._counts[key] += 1
                records.append(self._placed(key, str(self._counts[key])))
            self._applied += len(taken)
            self._write(records)

    def plant(self, entries: dict[str, str | None]) -> None:
        """Write a batch that reads nothing."""
        with self._lock:
            self._write([self._placed(*each) for each in entries.items()])

    def go_on(self, stop: threading.Event) -> None:
        """Apply what there is, a few events at a time, until the end; then all of it."""
        while not stop.wait(self._random.uniform(0.01, 0.2)):
            if self._applied < len(self._events):
                self.apply(self._random.randint(1, 200))

    def close(self) -> None:
        self._writer.close()
        self.fleet.__exit__()

    def _placed(self, key: str, value: str | None) -> Placed:
        partition = partition_for(key.encode(), self.fleet.partitions)
        return Placed(BOARDS, partition, key.encode(), None if value is None else value.encode())

    def _write(self, records: list[Placed]) -> None:
        self._writer.write(self._batch, records, {(self._topic, 0): self._applied})
        self._batch += 1


class TwoVersions:
    """Both versions, two routers, and the events."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.bootstrap, self.name, self.directory = bootstrap, name, directory
        self.events: list[str] = []
        self.versions: dict[str, Version] = {}
        self.routers: list[ServerProcess] = []

    def start(self) -> None:
        bootstrap, name, topic = self.bootstrap, self.name, f"{self.name}-events"
        create_topic(bootstrap, topic)
        for each in PARTITIONS:
            self.versions[each] = Version(bootstrap, name, each, self.events, topic, self.directory / each)
        self.routers = [self.versions[FIRST].fleet.router(f"router-{each}", proxy=PROXY) for each in (1, 2)]
        change_versions(bootstrap, name, lambda known: known.deployed("v2"), 20.0)

    @property
    def target(self) -> str:
        return ",".join(router.target for router in self.routers)

    def await_all(self, keys: int) -> None:
        """Wait until each router can count all keys of both versions."""
        for router in self.routers:
            for version in self.versions:
                poll_until(partial(self._has, router, version, keys), 60, f"{keys} keys of {version}")

    def _has(self, router: ServerProcess, version: str, keys: int) -> bool:
        with Client(router.target, direct=False, timeout=2.0) as client:
            try:
                return client.count(f"{BOARDS}@{version}", exact=True).count == keys
            except LookupFailure:
                return False

    def has_events(self, least: int) -> bool:
        return len(self.events) >= least

    def serve(self, version: str) -> None:
        """Have a version serve: the record is written, and the routers follow it as they see it."""
        change_versions(self.bootstrap, self.name, lambda known: known.promoted(version, KEPT_MS), 20.0)

    def compare(self, *words: str) -> tuple[Ran, Any]:
        ran = statehouse(self.directory, "compare", BOARDS, "v2", "--router", self.target, "-o", "json", *words)
        return ran, json.loads(ran.out) if ran.out else None

    def close(self) -> None:
        for each in self.versions.values():
            each.close()


@pytest.fixture
def two(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[TwoVersions]:
    started = TwoVersions(kafka.bootstrap, unique_name("boards"), tmp_path)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.mark.timeout(300)
def test_compare_finds_exactly_what_is_planted(two: TwoVersions) -> None:
    keys = [f"key-{number:04}" for number in range(2_000)]
    two.events += keys * 2
    two.versions[FIRST].apply(4_000)
    for _ in range(8):
        two.versions["v2"].apply(500)
    two.await_all(len(keys))
    ran, found = two.compare()
    assert ran.code == ExitCode.DONE, ran.err
    assert (found["keys"], found["samples"]) == (2_000, [])
    assert found["differing"] == {"missing": 0, "extra": 0, "other": 0}

    missing = dict.fromkeys(keys[7:2000:700])
    other = dict.fromkeys(("key-0000", "key-0500", "key-0501", "key-1999"), "77")
    extra = dict.fromkeys(("a", "key-0500x", "kez"), "2")
    two.versions["v2"].plant({**missing, **other, **extra})
    planted = sorted(
        [*((key, "missing", 2, None) for key in missing), *((key, "other", 2, 77) for key in other)]
        + [(key, "extra", None, 2) for key in extra]
    )
    poll_until(lambda: two.compare()[1]["keys"] == 2_003, 90, "the batch with what is planted")
    ran, found = two.compare("--samples", "100")
    assert ran.code == ExitCode.ERROR, ran.err
    assert found["differing"] == {"missing": 3, "extra": 3, "other": 4}
    assert [tuple(each.values()) for each in found["samples"]] == planted
    ranges = found["ranges"]
    assert sum(each["keys"] for each in ranges) == found["keys"]
    for each in ranges:
        within = [key for key, *_ in planted if each["first"] <= key <= each["last"]]
        assert each["differing"] == len(within), f"{each}: {within}"


class Watcher:
    """Watches all keys, and says what should not have been. It goes on at another router when its own is gone."""

    def __init__(self, target: str, *, by_batch: bool = False) -> None:
        self._target, self._by_batch = target, by_batch
        self._is_over = False
        self._token: str | None = None
        self._positions: tuple[WatchPosition, ...] = ()
        self._watch: Watch | BatchWatch | None = None
        self.newest: dict[str, int] = {}
        self.parts: dict[int, dict[str, int]] = {}
        self.wrong: list[str] = []
        self.versions: list[str] = []
        self.ended: list[str] = []
        self._work = Meanwhile(self._run, f"watcher of {target}")

    @property
    def has(self) -> dict[str, int]:
        return {key: count for part in self.parts.values() for key, count in part.items()}

    @contextmanager
    def going_on(self) -> Iterator[None]:
        with self._work.going_on():
            try:
                yield
            finally:
                self._is_over = True
                if self._watch is not None:
                    with suppress(LookupFailure):  # it may have left already
                        self._watch.close()

    def _run(self, _stop: threading.Event) -> None:
        while not self._is_over:
            with Client(self._target) as client:
                try:
                    (self._follow_batches if self._by_batch else self._follow)(client)
                except LookupFailure as failure:
                    self.ended.append(str(failure))

    def _follow(self, client: Client) -> None:
        self._watch = watch = client.watch(BOARDS, resume=self._positions)
        try:
            for update in watch:
                self._take(update)
        finally:
            self._positions = watch.positions

    def _follow_batches(self, client: Client) -> None:
        self._watch = watch = client.watch_batches(BOARDS, after=self._token)
        for batch in watch:
            for update in batch.updates:
                self._take(update)
            self._token = batch.token

    def _take(self, update: Update) -> None:
        version = update.replica.version
        if not self.versions or self.versions[-1] != version:
            self.versions.append(version)
        if update.begins:
            self.parts[update.partition] = {}
        part = self.parts.setdefault(update.partition, {})
        for change in update.changes:
            key, count = str(change.key), int(str(change.value))
            before = self.newest.get(key, 0)
            # Current values may leave out what came between; a change follows the one before.
            if not (count >= before if update.current else count == before + 1):
                self.wrong.append(f"{version} {key}: {count} after {before}, current: {update.current}")
            self.newest[key] = count
            part[key] = count


@pytest.mark.long  # over a minute
@pytest.mark.timeout(600)
def test_watches_lose_and_double_nothing_when_another_version_serves(two: TwoVersions) -> None:
    chosen = random.Random(SEED)
    keys = [f"key-{number}" for number in range(60)]

    def happen(stop: threading.Event) -> None:
        while not stop.wait(0.05):
            two.events.extend(chosen.choices(keys, k=3))

    two.events += keys
    for each in two.versions.values():
        each.apply(len(keys))
    two.await_all(len(keys))
    watchers = [Watcher(two.target), Watcher(two.routers[0].target), Watcher(two.target, by_batch=True)]
    works = [Meanwhile(each.go_on, each.version) for each in two.versions.values()]
    with ExitStack() as going_on:
        for work in works:
            going_on.enter_context(work.going_on())
        for watcher in watchers:
            going_on.enter_context(watcher.going_on())
        poll_until(lambda: all(len(each.has) == len(keys) for each in watchers), 60, "the first values")
        with Meanwhile(happen, "events").going_on():
            for version in ("v2", FIRST, "v2", FIRST, "v2"):
                two.serve(version)
                poll_until(partial(watch_only, watchers, version), 60, f"{version} watched")
                killed = [chosen.choice(two.versions[version].nodes), chosen.choice(two.routers)]
                for process in killed:
                    process.kill()
                least = len(two.events) + 100
                poll_until(partial(two.has_events, least), 60, "events")
                for process in killed:
                    process.start()
        model = dict(Counter(two.events))
        poll_until(lambda: all(each.has == model or each.wrong for each in watchers), 60, "all events")
    assert [each.wrong for each in watchers] == [[]] * len(watchers)
    for watcher in watchers:
        assert sum(len(part) for part in watcher.parts.values()) == len(model), "no key is in two partitions"


def watch_only(watchers: Iterable[Watcher], version: str) -> bool:
    return all(each.versions[-1] == version for each in watchers)
