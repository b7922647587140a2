"""What the nodes of a run did with their stores, what they were asked, and what they answered: written down.

The data plane is given the same in the same order (`dataplane/serve/recorded_test.go`), and has to answer the same.
What it is to know beside is written down, too: the snapshots, facts and times that a real node tells it. The rule of
what it may answer, `admitted`, is held against the node's admission on the way.

Simulated callers read single keys. So the recorder asks for more after each lookup: the value decoded, a key by its
bytes, one that isn't there, pages and how many keys there are.
"""

from __future__ import annotations

import base64
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from query_service.reads.fleet_view import ServedStore
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica
from query_service.serving.admitted import Admitted, Held, Obstacle, ReadRequest, admitted
from query_service.serving.serving import HOLDS_S
from query_service.serving.snapshots import SnapshotCompiler
from query_service.stores.base import ChangelogRecord
from query_service.stores.walk import Walk
from statehouse.control.v1 import serving_pb2
from statehouse.errors import LookupFailure
from statehouse.serdes import shown_value
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.inline import ended

if TYPE_CHECKING:
    from tests.simulation.kafka import Changelog, Kafka
    from tests.simulation.node import SimulatedNode
    from tests.simulation.world import World

MAX_MESSAGE_BYTES: Final = 1_000_000
_MAX_BATCH_ENTRIES: Final = 1_000
_US: Final = 1e6
_VARIANTS_SHARE: Final = 0.5
_PAGES_SHARE: Final = 0.25

T = TypeVar("T")
Ask = Callable[[query_service_pb2.GetRequest], bytes]


class Unrecorded:
    """Writes nothing down."""

    def opened(self, node: SimulatedNode, store: StoreReplica) -> None:
        """Take that a process of a node has opened a store, at the place that it has on the disk."""

    def followed(self, store: StoreReplica, *, restores: bool) -> None:
        """Take that its changelog is read from now on."""

    def read(self, store: StoreReplica, *, at_end: bool) -> None:
        """Take that it was read up to the store's position."""

    def saved(self, store: StoreReplica) -> None:
        """Take that the store's place is on the disk."""

    def closed(self, store: StoreReplica) -> None:
        """Take that a store was closed."""

    def ended(self, node: SimulatedNode) -> None:
        """Take that a process has ended."""

    def asked(self, node: SimulatedNode, request: query_service_pb2.GetRequest, ask: Ask) -> bytes:  # noqa: ARG002
        """Return what `ask` does."""
        return ask(request)

    def write(self, kafka: Kafka) -> None:
        """Take that the run has ended well."""


@dataclass(slots=True)
class _Event:
    """Something that happened, as the reader in Go knows it."""

    do: str
    node: str = ""
    machine: str = ""
    store: int = 0
    log: str = ""
    position: int = 0
    count: int = 0
    flag: bool = False
    us: int = 0
    until_us: int = 0
    obstacle: int = 0
    data: str = ""
    answer: str = ""
    later: str = ""
    """The answer if what is read of the log next is there before the value is read."""


@dataclass(slots=True)
class _Found:
    """An answer to a lookup, with what was read for it."""

    event: _Event
    served: ServedStore
    replica: StoreReplica
    key: bytes
    request: query_service_pb2.GetRequest
    stamp: types_pb2.ReplicaStamp


class _AtOnce:
    """Reads pages without threads."""

    async def run(self, _replicas: object, read: Callable[[Walk], T]) -> T:
        return read(Walk())


class _Told:
    """What the data plane of one process knows."""

    def __init__(self, node: SimulatedNode) -> None:
        self.compiler = SnapshotCompiler(node.admission, max_batch_entries=_MAX_BATCH_ENTRIES)
        self.ends: dict[int, serving_pb2.ServingEnd] = {}
        self.reports: dict[str, serving_pb2.ServingReport] = {}
        self.scans = ScanHandler(node.admission, cast(Any, _AtOnce()), max_message_bytes=MAX_MESSAGE_BYTES)


class Recorder(Unrecorded):
    """Writes everything down."""

    def __init__(self, world: World, path: Path) -> None:
        self._world, self._path = world, path
        # Its own: a run is the same with a recorder and without.
        self._rng = random.Random(f"recorder of {world.seed}")
        self._events: list[_Event] = []
        self._found: dict[int, _Found] = {}
        """By their places among the events."""
        self._told: dict[str, _Told] = {}
        self._positions: dict[int, int] = {}
        self.counts = Counter[str]()

    # Stores.

    def opened(self, node: SimulatedNode, store: StoreReplica) -> None:
        self._note("open", store, node=node.name, machine=node.machine, log=_log(store.spec.name, store.partition))

    def followed(self, store: StoreReplica, *, restores: bool) -> None:
        self._note("follow", store, flag=restores, data=_encoded(store.present_checkpoint().to_json().encode()))

    def read(self, store: StoreReplica, *, at_end: bool) -> None:
        if self._positions.get(_number(store)) != store.position:
            self._note("read", store, flag=at_end)

    def saved(self, store: StoreReplica) -> None:
        at_end_ms = store.present_checkpoint().at_end_ms
        self._note("save", store, us=at_end_ms, count=store.store.approximate_count())

    def closed(self, store: StoreReplica) -> None:
        self._note("close", store)

    def ended(self, node: SimulatedNode) -> None:
        self._events.append(_Event("end", node.name))
        self._told.pop(node.name, None)

    def _note(self, do: str, store: StoreReplica, **more: Any) -> None:
        self._positions[_number(store)] = store.position
        self._events.append(_Event(do, store=_number(store), position=store.position, **more))

    # Lookups.

    def asked(self, node: SimulatedNode, request: query_service_pb2.GetRequest, ask: Ask) -> bytes:
        self._tell(node)
        try:
            found = ask(request)
        except LookupFailure:
            self._get(node, request, None)
            self._ask_more(node, request, ask)
            raise
        self._get(node, request, found)
        self._ask_more(node, request, ask)
        return found

    def _ask_more(self, node: SimulatedNode, request: query_service_pb2.GetRequest, ask: Ask) -> None:
        rng = self._rng
        for variant in self._variants(request):
            try:
                found: bytes | None = ask(variant)
            except LookupFailure:
                found = None
            self._get(node, variant, found)
        if rng.random() < _PAGES_SHARE:
            self._page(node, request)

    def _variants(self, request: query_service_pb2.GetRequest) -> Iterator[query_service_pb2.GetRequest]:
        rng = self._rng
        if rng.random() > _VARIANTS_SHARE:
            return
        variant = query_service_pb2.GetRequest()
        variant.CopyFrom(request)
        text = variant.key.text if rng.random() < 0.8 else f"{variant.key.text}/{rng.randrange(100)}"
        variant.key.CopyFrom(types_pb2.Key(text=text) if rng.random() < 0.5 else types_pb2.Key(raw=text.encode()))
        variant.raw, variant.json_text = rng.random() < 0.3, rng.random() < 0.3
        if rng.random() < 0.2:
            variant.ClearField("freshness")
            for name, most in (("max_lag", 4), ("max_staleness_ms", 800), ("max_processor_age_ms", 5_000)):
                if rng.random() < 0.5:
                    setattr(variant.freshness, name, rng.randrange(most))
        yield variant

    def _get(self, node: SimulatedNode, request: query_service_pb2.GetRequest, found: bytes | None) -> None:
        """Write down a lookup and the node's answer, None if it refused."""
        said = self._admitted(node, request)
        event = self._event(node, "get", request.SerializeToString(), said)
        if isinstance(said, Admitted):
            number, stamp = said.replicas[0]
            assert said.key is not None
            if found is None:
                self._refused(node, said, request.freshness)
                return
            response = query_service_pb2.GetResponse.FromString(found)
            if not self._same(response.replica, stamp):
                self._differ(node, f"{request}: {response.replica} where the rule says {stamp}")
                return
            response.replica.CopyFrom(stamp)
            event.answer = _encoded(_as_written(response))
            served, replica = node.admission.store(request.store), self._told[node.name].compiler.replicas[number]
            self._found[len(self._events)] = _Found(event, served, replica, said.key, request, stamp)
        elif found is not None:
            self.counts[f"answered by Python: {serving_pb2.ServingObstacle.Name(said)}"] += 1
        self._events.append(event)

    def _page(self, node: SimulatedNode, lookup: query_service_pb2.GetRequest) -> None:
        """Ask for pages of the partition that a key is in, and write them down."""
        if not isinstance(of_key := self._admitted(node, lookup), Admitted):
            return
        rng = self._rng
        request = query_service_pb2.ScanRequest(
            store=lookup.store,
            partition=of_key.replicas[0][1].partition,
            freshness=lookup.freshness if lookup.HasField("freshness") else None,
            forwarding=lookup.forwarding if lookup.HasField("forwarding") else None,
            raw=rng.random() < 0.5,
            reverse=rng.random() < 0.5,
            page_size=rng.choice((1, 2, 5, 100)),
        )
        what = rng.randrange(4)
        if what == 0:
            request.from_key.text = f"k{rng.randrange(40)}"
        elif what == 1:
            request.to_key.raw = b"k%d" % rng.randrange(40)
        elif what == 2:
            request.prefix.text = f"k{rng.randrange(5)}"
        for _ in range(rng.randint(1, 3)):
            said, scanned = self._admitted(node, request), self._scanned(node, request)
            if not isinstance(said, Admitted):
                self._differ(node, f"{request}: the rule admits the lookup, and not the page: {said}")
                return
            if scanned is None:
                self._refused(node, said, lookup.freshness)
                return
            ((_, stamp),) = said.replicas
            page = query_service_pb2.ScanResponse.FromString(scanned)
            assert page.SerializeToString() == scanned
            if not self._same(page.replicas[0], stamp):
                self._differ(node, f"{request}: {page.replicas[0]} where the rule says {stamp}")
                return
            page.replicas[0].CopyFrom(stamp)
            event = self._event(node, "scan", request.SerializeToString(), said)
            event.answer = _encoded(page.SerializeToString())
            self._events.append(event)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def _scanned(self, node: SimulatedNode, request: query_service_pb2.ScanRequest) -> bytes | None:
        try:
            return ended(self._told[node.name].scans.scan(request))
        except LookupFailure:
            return None

    def _event(self, node: SimulatedNode, do: str, request: bytes, said: Admitted | Obstacle) -> _Event:
        """Return a read. Python answers it unless the rule says that the data plane does."""
        now, holds_s = self._world.now, min(HOLDS_S, node.confirmed_for_s())
        obstacle = serving_pb2.SERVING_OBSTACLE_UNSPECIFIED if isinstance(said, Admitted) else said
        self.counts[f"{do}: {serving_pb2.ServingObstacle.Name(obstacle)}"] += 1
        return _Event(
            do,
            node.name,
            store=said.replicas[0][0] if isinstance(said, Admitted) else 0,
            us=int(now * _US),
            until_us=int((now + holds_s) * _US) if holds_s > 0 else -1,
            obstacle=int(obstacle),
            data=_encoded(request),
        )

    def _admitted(self, node: SimulatedNode, request: ReadRequest) -> Admitted | Obstacle:
        """Return what the rule says of a lookup now."""
        told = self._told[node.name]
        if not node.is_confirmed():
            return serving_pb2.SERVING_OBSTACLE_NO_SNAPSHOT
        replicas = told.compiler.replicas

        def held(number: int) -> Held:
            return Held(replicas[number].position, told.ends.get(number))

        return admitted(told.compiler.latest, held, told.reports, request, int(self._world.now * _US))

    def _tell(self, node: SimulatedNode) -> None:
        """Write down what a node tells its data plane, as far as it has changed."""
        told = self._told.get(node.name) or self._told.setdefault(node.name, _Told(node))
        if (snapshot := told.compiler.changed()) is not None:
            data = _encoded(snapshot.SerializeToString())
            self._events.append(_Event("decide", node.name, count=snapshot.number, data=data))
        facts = serving_pb2.ServingFacts()
        for number, replica in told.compiler.replicas.items():
            replica.staleness_ms(self._world.now)  # it notes that a position confirms an end
            if (last := replica.last_end()) is not None:
                assert last.holds_until is not None
                end = serving_pb2.ServingEnd(
                    store=number,
                    offset=last.offset,
                    holds_until_us=int(last.holds_until * _US),
                    at_end_us=None if last.at_end is None else int(last.at_end * _US),
                )
                if told.ends.get(number) != end:
                    told.ends[number] = end
                    facts.ends.append(end)
        for store, report in node.reports.latest.items():
            fact = serving_pb2.ServingReport(
                store=store, at_us=int(report.at_s * _US), input_backlog=report.input_backlog
            )
            if told.reports.get(store) != fact:
                told.reports[store] = fact
                facts.reports.append(fact)
        if facts.ends or facts.reports:
            self._events.append(_Event("know", node.name, data=_encoded(facts.SerializeToString())))

    @staticmethod
    def _same(theirs: types_pb2.ReplicaStamp, ours: types_pb2.ReplicaStamp) -> bool:
        """Whether two stamps are the same, but for a millisecond: one side counts in seconds, the other in µs."""
        rounded = types_pb2.ReplicaStamp()
        rounded.CopyFrom(theirs)
        for name in ("staleness_ms", "processor_age_ms"):
            if rounded.HasField(name) and ours.HasField(name) and abs(getattr(theirs, name) - getattr(ours, name)) <= 1:
                setattr(rounded, name, getattr(ours, name))
        return rounded == ours

    def _refused(self, node: SimulatedNode, said: Admitted, bound: types_pb2.Freshness) -> None:
        """Take that the node refuses what the rule admits. It may, by a millisecond."""
        _, stamp = said.replicas[0]
        is_rounded = (bound.HasField("max_staleness_ms") and stamp.staleness_ms == bound.max_staleness_ms) or (
            bound.HasField("max_processor_age_ms") and stamp.processor_age_ms == bound.max_processor_age_ms
        )
        if is_rounded:
            self.counts["refused by a millisecond"] += 1
        else:
            self._differ(node, f"it refuses what the rule admits: {said}, {bound}")

    def _differ(self, node: SimulatedNode, how: str) -> None:
        self._world.break_rule("the data plane's rule is the node's", f"{node.name}: {how}")

    # The end.

    def write(self, kafka: Kafka) -> None:
        """Write the file: the logs in its first line, and each event in one of its own."""
        self._complete(kafka)
        logs = {_log(*place): [_shown(record) for record in log.records] for place, log in kafka.changelogs.items()}
        counts = {name: log.spec.partition_count for (name, _), log in kafka.changelogs.items()}
        with self._path.open("w") as file:
            print(json.dumps({"logs": logs, "partition_counts": counts}), file=file)
            for event in self._events:
                print(json.dumps({name: value for name, value in asdict(event).items() if value}), file=file)

    def _complete(self, kafka: Kafka) -> None:
        """Say of lookups what they find if what is read next of the log is there before they read the value.

        Only where nobody asks the node between the two.
        """
        following: dict[int, tuple[int, _Event]] = {}
        asked_at: dict[str, int] = {}
        for place in range(len(self._events) - 1, -1, -1):
            event = self._events[place]
            if (found := self._found.get(place)) is not None:
                at, after = following.get(_number(found.replica), (0, event))
                if after.do == "read" and at < asked_at.get(event.node, sys.maxsize):
                    event.later = _encoded(_later(kafka.changelogs, found, after.position))
            if event.do in {"get", "scan"}:
                asked_at[event.node] = place
            elif event.store:
                following[event.store] = (place, event)


def _later(logs: dict[tuple[str, int], Changelog], found: _Found, position: int) -> bytes:
    """Return the answer with the value of a later position."""
    replica, request = found.replica, found.request
    record = logs[replica.spec.name, replica.partition].record_at(found.key, position)
    response = query_service_pb2.GetResponse(found=False, replica=found.stamp)
    if record is not None and record.value is not None:
        serde = found.served.asked(exact=request.json_text).value_serde
        response.found, response.timestamp_ms = True, record.timestamp_ms
        response.value.CopyFrom(shown_value(serde, record.value, raw=request.raw))
    return _as_written(response)


def _as_written(response: query_service_pb2.GetResponse) -> bytes:
    """Return an answer with its fields in the order in which the data plane writes them."""
    head = b"\x08\x01" if response.found else b"\x08\x00"
    parts = [query_service_pb2.GetResponse(replica=response.replica)]
    if response.found:
        at = query_service_pb2.GetResponse(timestamp_ms=response.timestamp_ms)
        parts = [at, query_service_pb2.GetResponse(value=response.value), *parts]
    return head + b"".join(part.SerializeToString() for part in parts)


def _number(store: StoreReplica) -> int:
    number: int = store.store.engine.store  # type: ignore[attr-defined]
    return number


def _log(store: str, partition: int) -> str:
    return f"{store}/{partition}"


def _shown(record: ChangelogRecord) -> tuple[int, str, str | None, int]:
    value = None if record.value is None else _encoded(record.value)
    return record.offset, _encoded(record.key), value, record.timestamp_ms


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()
