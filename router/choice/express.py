"""The express way: which lookups the proxy may send to a node on its own, and to which. Pure.

A router compiles what it has decided into a snapshot, and its proxy acts on that. `decided` is the rule, for one
lookup: the proxy's program does the same in Go, and tests hold the two together. Only plain lookups are decided, those
for which `ask_order` begins with a node that is well by all that is known, or late like all others. Everything else is
the router's, for a reason: an obstacle.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from router.choice.candidates import Severity, Suspicion, unfit
from router.fleet.table import PartitionRoutes, RoutedReplica, RoutingTable, StoreRoutes
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role
from statehouse.control.v1 import express_pb2
from statehouse.link.forms import key_form
from statehouse.serdes import SERDES
from statehouse.v1 import fleet_service_pb2

_ADDRESS_MAX: Final = 255  # bytes, as in dataplane/snapshot.go
_MICROSECONDS: Final = 1_000_000
# Tags of GetRequest's fields that a plain lookup may have, and of Key's.
_STORE, _KEY, _RAW, _JSON_TEXT = 0x0A, 0x12, 0x20, 0x70
_TEXT_KEY, _RAW_KEY = 0x0A, 0x12
_FRESHNESS: Final = 0x1A
# Tags of Freshness' fields that it may have. With the first one the active alone suits; without it, one of the next two
# is a bound that suits any copy within it. The positions are reached by the active first.
_ACTIVE_ONLY, _MAX_LAG, _MAX_STALENESS, _AT_LEAST = 0x08, 0x10, 0x18, 0x22
_BOUNDS: Final = frozenset({_ACTIVE_ONLY, _MAX_LAG, _MAX_STALENESS, _AT_LEAST, 0x28, 0x30})
# The tag of its bound on the batch, and what that may begin with: newest, at_least, exactly.
_MOMENT: Final = 0x3A
_MOMENT_BOUNDS: Final = frozenset({0x08, 0x12, 0x1A})
# A length, a flag or a bound of more digits is nothing that a serializer writes for a lookup.
_DIGITS_MAX: Final = 4
# What a node is asked for is in its memory. Only a key that is asked for so often that its node has more work than
# others is worth the memory of another one, too.
_HOT_PERCENT: Final = 5
# Fewer lookups of a key are chance.
_HOT_LEAST: Final = 16
_HALF_LIFE_S: Final = 1.0
_PAUSE_S: Final = 1.0
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class ObstacleKind(Enum):
    """Why a lookup is the router's, as in statehouse.v1.ExpressObstacle."""

    OFF = fleet_service_pb2.EXPRESS_OBSTACLE_OFF
    NO_PROXY = fleet_service_pb2.EXPRESS_OBSTACLE_NO_PROXY
    NO_SNAPSHOT = fleet_service_pb2.EXPRESS_OBSTACLE_NO_SNAPSHOT
    NOT_PLAIN = fleet_service_pb2.EXPRESS_OBSTACLE_NOT_PLAIN
    UNKNOWN_STORE = fleet_service_pb2.EXPRESS_OBSTACLE_UNKNOWN_STORE
    KEY_SERDE = fleet_service_pb2.EXPRESS_OBSTACLE_KEY_SERDE
    KEY_TEXT = fleet_service_pb2.EXPRESS_OBSTACLE_KEY_TEXT
    UNDECIDED = fleet_service_pb2.EXPRESS_OBSTACLE_UNDECIDED
    TURNS = fleet_service_pb2.EXPRESS_OBSTACLE_TURNS
    NO_ADDRESS = fleet_service_pb2.EXPRESS_OBSTACLE_NO_ADDRESS
    SUSPECTED = fleet_service_pb2.EXPRESS_OBSTACLE_SUSPECTED
    UNFIT = fleet_service_pb2.EXPRESS_OBSTACLE_UNFIT
    KEYS_MISPLACED = fleet_service_pb2.EXPRESS_OBSTACLE_KEYS_MISPLACED


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a lookup is the router's, and what people should know about it."""

    kind: ObstacleKind
    detail: str


def standing_obstacle(*, is_on: bool, has_proxy: bool) -> Obstacle | None:
    """Return what keeps all lookups of a router from the express way as long as the process lives."""
    if not is_on:
        return Obstacle(ObstacleKind.OFF, "the router's setting express is off")
    if not has_proxy:
        return Obstacle(ObstacleKind.NO_PROXY, "the router has no proxy")
    return None


def first_asked(routes: PartitionRoutes, suspects: Mapping[str, Suspicion]) -> RoutedReplica | Obstacle:
    """Return the replica that `ask_order` puts first for any lookup without bounds, if it is well and doesn't vary.

    Copies of a global store are asked in turn, so it varies there. Where none is well, one that is slow or silent
    is asked: machines that are busy make all nodes late, and must not bring all lookups to the router.
    """
    if routes.equals > 1:
        return Obstacle(ObstacleKind.TURNS, f"{routes.equals} copies are equally good and asked in turn")
    first_obstacle: Obstacle | None = None
    for each in routes.callable:
        obstacle = _obstacle_at(each, suspects)
        if obstacle is None:
            return each
        first_obstacle = first_obstacle or obstacle
        if each.role is Role.GLOBAL:
            return obstacle  # without this copy others may be equally good
    if late := _late(routes.callable, suspects):
        return late[0]
    return first_obstacle or Obstacle(ObstacleKind.NO_ADDRESS, "no replica's address is known")


def _late(replicas: Sequence[RoutedReplica], suspects: Mapping[str, Suspicion]) -> tuple[RoutedReplica, ...]:
    """Return the replicas that are the best to ask where none is well: slow ones, else silent ones, if there are.

    Those that would refuse by their last reports are asked between the two, by the router.
    """
    known = [(each, suspects[each.instance_id].severity) for each in replicas if each.instance_id in suspects]
    if slow := tuple(each for each, severity in known if severity is Severity.SLOW):
        return slow
    silent = tuple(each for each, severity in known if severity is Severity.SILENT)
    return silent if len(known) == len(replicas) else ()


def _obstacle_at(replica: RoutedReplica, suspects: Mapping[str, Suspicion]) -> Obstacle | None:
    """Return why the replica is asked after others that are well, None if it is well itself."""
    if (suspicion := suspects.get(replica.instance_id)) is not None:
        return Obstacle(ObstacleKind.SUSPECTED, f"{replica.instance_id} is asked last: {suspicion.detail}")
    if (unwell := unfit(replica)) is not None:
        return Obstacle(ObstacleKind.UNFIT, f"{replica.instance_id}: {unwell[1]}")
    return None


def good_copies(routes: PartitionRoutes, suspects: Mapping[str, Suspicion]) -> tuple[RoutedReplica, ...]:
    """Return the replicas that are equally good for a lookup that suits any within its bound, and are well.

    The first is the one that `ask_order` puts first if all are within the bound by their last heartbeats; a node looks
    for itself. Copies of a global store are asked in turn, by the router.
    """
    if routes.equals > 1:
        return ()
    well = routes.restored
    if suspects:
        late = _late(routes.callable, suspects)
        unsuspected = tuple(each for each in well if each.instance_id not in suspects)
        well = unsuspected or (late if set(late) <= set(well) else ())
    return (routes.has_near and tuple(each for each in well if each.is_near)) or well


@dataclass(frozen=True, slots=True)
class ExpressLimits:
    """The router's limits: lookups under way, and of one batch; and after how long a batch is late.

    `needs_permits`: callers are judged, and those alone are decided for who have a permit.
    """

    max_lookups: int
    max_batch_entries: int
    batch_late_after_s: float
    needs_permits: bool


class ExpressCompiler:
    """Compiles snapshots of a router's tables.

    `late_after_s(store)`: after how long an answer is late. `bounds`: the snapshot's fields that never change.
    """

    def __init__(
        self, late_after_s: Callable[[StoreRoutes], float], bounds: ExpressLimits, *, version: str = "", after: int = 0
    ) -> None:
        """`version`: as the wire has it. `after`: the number of the last snapshot that the proxy was given."""
        self._late_after_s, self._bounds, self._version = late_after_s, bounds, version
        self.latest = express_pb2.ExpressSnapshot(number=after)
        """The last snapshot; without any before it the first has the number 1."""

    def changed(
        self, table: RoutingTable | None, suspects: Mapping[str, Suspicion]
    ) -> express_pb2.ExpressSnapshot | None:
        """Return the snapshot if it differs from the last one; without a table it decides nothing."""
        snapshot = express_pb2.ExpressSnapshot(
            number=self.latest.number,
            max_lookups=self._bounds.max_lookups,
            max_batch_entries=self._bounds.max_batch_entries,
            batch_late_after_us=_rounded(self._bounds.batch_late_after_s * _MICROSECONDS),
            needs_permits=self._bounds.needs_permits,
            version=self._version,
            spread=express_pb2.ExpressSpread(
                percent=_HOT_PERCENT,
                least=_HOT_LEAST,
                half_life_us=round(_HALF_LIFE_S * _MICROSECONDS),
                pause_us=round(_PAUSE_S * _MICROSECONDS),
            ),
        )
        if table is not None:
            snapshot.forwarding, snapshot.page_forwarding = table.forwarding, table.page_forwarding
            self._add_stores(snapshot, table, suspects)
        if snapshot == self.latest:
            return None
        snapshot.number += 1
        self.latest = snapshot
        return snapshot

    def _add_stores(
        self, snapshot: express_pb2.ExpressSnapshot, table: RoutingTable, suspects: Mapping[str, Suspicion]
    ) -> None:
        places: dict[tuple[str, Role], int] = {}
        for name, store in table.stores.items():
            if table.scattered(name) is not None:
                continue  # all of its partitions are asked
            askable = [first_asked(routes, suspects) for routes in store.partitions]
            first = [0 if isinstance(each, Obstacle) else _place(snapshot, places, each) for each in askable]
            if any(first):
                late_after_us = _rounded(self._late_after_s(store) * _MICROSECONDS)
                snapshot.stores.add(
                    name=name,
                    key_form=key_form(SERDES.get(store.spec.key_serde)),
                    first=first,
                    late_after_us=late_after_us,
                    copies=_copies(snapshot, places, store, suspects),
                    # A copy of a global store is asked for all partitions as a whole.
                    pages=not store.spec.is_global,
                )


def _copies(
    snapshot: express_pb2.ExpressSnapshot,
    places: dict[tuple[str, Role], int],
    store: StoreRoutes,
    suspects: Mapping[str, Suspicion],
) -> list[int]:
    rows = [[_place(snapshot, places, copy) for copy in good_copies(routes, suspects)] for routes in store.partitions]
    width = max(map(len, rows))
    # What can't be called leaves the partition to the router.
    return [place for row in rows for place in (*(row if all(row) else ()), *[0] * width)[:width]]


def _place(snapshot: express_pb2.ExpressSnapshot, places: dict[tuple[str, Role], int], replica: RoutedReplica) -> int:
    name = (replica.instance_id, replica.role)
    if (place := places.get(name)) is None:
        # The proxy refuses a longer address; nobody's record should have led to one.
        if replica.node is None or len(replica.node.target.encode()) > _ADDRESS_MAX:
            return 0
        snapshot.nodes.add(instance_id=replica.instance_id, address=replica.node.target, role=replica.role.value)
        place = places[name] = len(places) + 1
    return place


def _rounded(number: float) -> int:
    """Return a number with two digits that count: for less it isn't worth a new snapshot."""
    return int(float(f"{number:.1e}"))


@dataclass(frozen=True, slots=True)
class Decided:
    """A lookup that a snapshot decides: its store and partition, and whom it goes to.

    `others`: to whom it may go, too, if its key is asked for very often. `of_batch`: its answer is to be of a batch.
    `may_wait`: for a position, at its node, so that no other lookup may share its call.
    """

    store: str
    partition: int
    node: express_pb2.ExpressNode
    others: tuple[express_pb2.ExpressNode, ...] = ()
    of_batch: bool = False
    may_wait: bool = False


NO_SNAPSHOT: Final = Obstacle(ObstacleKind.NO_SNAPSHOT, "the proxy has been given no snapshot yet")
_NOT_PLAIN: Final = Obstacle(
    ObstacleKind.NOT_PLAIN, "it has more than a store, a key, and a bound on copies or on the batch"
)
_UNKNOWN_STORE: Final = Obstacle(ObstacleKind.UNKNOWN_STORE, "the snapshot has nothing of the store")
_KEY_SERDE: Final = Obstacle(ObstacleKind.KEY_SERDE, "only the serdes string and long are the proxy's: give a raw key")
_KEY_TEXT: Final = Obstacle(ObstacleKind.KEY_TEXT, "the key is not written as the proxy reads integers")
_UNDECIDED: Final = Obstacle(ObstacleKind.UNDECIDED, "the snapshot leaves the partition to the router")


def decided(snapshot: express_pb2.ExpressSnapshot, request: bytes) -> Decided | Obstacle:
    """Return whom the snapshot has a serialized GetRequest sent to, or why that is for the router to say."""
    plain = _plain(request)
    if plain is None:
        return _NOT_PLAIN
    name, is_text, key, bound = plain
    store = next((each for each in snapshot.stores if each.name.encode() == name), None)
    if store is None:
        return _UNKNOWN_STORE
    serialized = _serialized(store.key_form, key) if is_text else key
    if serialized is None:
        return _KEY_SERDE if store.key_form == express_pb2.KEY_FORM_UNSPECIFIED else _KEY_TEXT
    partition = partition_for(serialized, len(store.first))
    width = len(store.copies) // len(store.first)
    good = store.copies[partition * width : (partition + 1) * width]
    copies = good if bound is _Bound.ANY_COPY else [store.first[partition]]
    nodes = [snapshot.nodes[place - 1] for place in copies if place]
    if not nodes or (bound in {_Bound.ACTIVE, _Bound.POSITION} and nodes[0].role != Role.ACTIVE):
        return _UNDECIDED
    of_batch, may_wait = bound is _Bound.BATCH, bound is _Bound.POSITION
    return Decided(store.name, partition, nodes[0], tuple(nodes[1:]), of_batch, may_wait)


def obstacle_to(
    snapshot: express_pb2.ExpressSnapshot, request: bytes, routes: PartitionRoutes, suspects: Mapping[str, Suspicion]
) -> Obstacle | None:
    """Return what keeps a serialized GetRequest from the express way, None if nothing does.

    If the snapshot leaves a partition to the router, `routes` say why.
    """
    found = decided(snapshot, request)
    if isinstance(found, Decided):
        return None
    if not snapshot.number:
        return NO_SNAPSHOT
    if found in {_UNKNOWN_STORE, _UNDECIDED}:
        first = first_asked(routes, suspects)
        return first if isinstance(first, Obstacle) else found
    return found


def _serialized(form: express_pb2.KeyForm.ValueType, text: bytes) -> bytes | None:
    if form == express_pb2.KEY_FORM_TEXT:
        return text
    if form == express_pb2.KEY_FORM_LONG and _INTEGER.fullmatch(text):
        number = int(text)
        return number.to_bytes(8, "big", signed=True) if -(2**63) <= number < 2**63 else None
    return None


class _Bound(Enum):
    """A Freshness' bound: none; lag or staleness, which suits any copy within; the batch; the role; or positions."""

    NONE = 0
    ANY_COPY = 1
    BATCH = 2
    ACTIVE = 3
    POSITION = 4


def _plain(request: bytes) -> tuple[bytes, bool, bytes, _Bound] | None:
    """Return a lookup's store, whether its key is text, the key, and its bound.

    None if there is more, or a thing twice.
    """
    store: bytes | None = None
    key: tuple[bool, bytes] | None = None
    bound = _Bound.NONE
    flags: set[int] = set()
    at = 0
    while at < len(request):
        tag = request[at]
        if tag in {_RAW, _JSON_TEXT} - flags:
            flag, at = _number(request, at + 1)
            if flag not in {0, 1}:
                return None
            flags.add(tag)
            continue
        content, at = _content(request, at + 1)
        if content is None:
            return None
        if tag == _STORE and store is None:
            store = content
        elif tag == _KEY and key is None:
            key = _key(content)
            if key is None:
                return None
        elif tag == _FRESHNESS and bound is _Bound.NONE and (found := _bound_in(content)) is not None:
            bound = found
        else:
            return None
    if store is None or key is None:
        return None
    return (store, *key, bound) if _is_text(store) and (_is_text(key[1]) or not key[0]) else None


def _bound_in(data: bytes) -> _Bound | None:
    """Return what a Freshness bounds; None if that is the router's to read. Some clients always send an empty one."""
    if not data:
        return _Bound.NONE
    if (found := _of_copies(data)) is not None:
        return found
    if data[:1] != bytes([_MOMENT]):
        return None
    asked, end = _content(data, 1)
    # What may be wrong with it nodes say.
    return _Bound.BATCH if asked and end == len(data) and asked[0] in _MOMENT_BOUNDS else None


def _of_copies(data: bytes) -> _Bound | None:
    """Return which copies suit a Freshness; None if it has more than bounds on them, and on what is alike for all."""
    seen: set[int] = set()
    at = 0
    while at < len(data):
        tag = data[at]
        # What may be wrong with positions nodes say.
        bound, at = _content(data, at + 1) if tag == _AT_LEAST else _number(data, at + 1)
        if tag not in _BOUNDS - seen or bound is None or (tag == _ACTIVE_ONLY and bound != 1):
            return None
        seen.add(tag)
    suits_any = bool(seen & {_MAX_LAG, _MAX_STALENESS})
    if _AT_LEAST in seen:
        return None if suits_any else _Bound.POSITION  # a copy that is near may have reached them
    if _ACTIVE_ONLY in seen:
        return _Bound.ACTIVE
    return _Bound.ANY_COPY if suits_any else None


def _key(data: bytes) -> tuple[bool, bytes] | None:
    if not data or data[0] not in {_TEXT_KEY, _RAW_KEY}:
        return None
    content, end = _content(data, 1)
    return None if content is None or end != len(data) else (data[0] == _TEXT_KEY, content)


def _content(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Return what stands behind its length there, and where it ends; None if it does not stand there whole."""
    size, at = _number(data, at)
    if size is None or at + size > len(data):
        return None, at
    return data[at : at + size], at + size


def _number(data: bytes, at: int) -> tuple[int | None, int]:
    number = 0
    for shift in range(0, 7 * _DIGITS_MAX, 7):
        if at >= len(data):
            break
        digit = data[at]
        at += 1
        number |= (digit & 0x7F) << shift
        if digit <= 0x7F:
            return number, at
    return None, at


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
