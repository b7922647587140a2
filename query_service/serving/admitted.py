"""Which reads the data plane answers on its own, of what, and what their stamps say. Pure.

A node compiles what it has decided into a snapshot. `admitted` is the rule, for one read: the program does the same in
Go (`dataplane/admit`), and tests hold the two together. A read is answered only if nothing speaks against it. What
would be refused, or has to wait, is Python's, which says why in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from statehouse.contract.committed_moments import Chosen, KnownMoments, Missed, chosen
from statehouse.contract.consistency import ANY, Freshness, ReplicaFreshness, violation
from statehouse.contract.moments import MomentBound
from statehouse.contract.paging import (
    KeyRange,
    PagedRequest,
    after_page,
    after_prefix,
    bound_of_page,
    moment_of_walk,
    next_page_token,
    page_size,
)
from statehouse.contract.partitioning import partition_for
from statehouse.contract.scan_ranges import key_range
from statehouse.contract.topology import Role
from statehouse.control.v1 import engine_pb2, express_pb2, serving_pb2
from statehouse.errors import LookupFailure
from statehouse.keys import ordered as ordered_keys
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

_HOPS_MAX: Final = 1
_POSITIONS_MAX: Final = 1_000
"""A token of more positions is Python's to read."""
_ANY_BATCH: Final = 2**63 - 1
_MS_US: Final = 1_000
_KEY_SERDES: Final = {express_pb2.KEY_FORM_TEXT: "string", express_pb2.KEY_FORM_LONG: "long"}

Obstacle: TypeAlias = serving_pb2.ServingObstacle.ValueType
KeyedRequest: TypeAlias = (
    query_service_pb2.GetRequest
    | query_service_pb2.FetchWindowsRequest
    | query_service_pb2.FetchSessionsRequest
    | query_service_pb2.GetAsOfRequest
    | query_service_pb2.GetHistoryRequest
)
ReadRequest: TypeAlias = KeyedRequest | query_service_pb2.ScanRequest | query_service_pb2.CountRequest

_KEY_VALUE, _VERSIONED = engine_pb2.ENGINE_KIND_KEY_VALUE, engine_pb2.ENGINE_KIND_VERSIONED
_WINDOW, _SESSION = engine_pb2.ENGINE_KIND_WINDOW, engine_pb2.ENGINE_KIND_SESSION
KINDS: Final[Mapping[type[ReadRequest], frozenset[engine_pb2.EngineKind.ValueType]]] = MappingProxyType(
    {
        query_service_pb2.GetRequest: frozenset({_KEY_VALUE, _VERSIONED}),
        query_service_pb2.ScanRequest: frozenset({_KEY_VALUE}),
        query_service_pb2.CountRequest: frozenset({_KEY_VALUE, _WINDOW, _SESSION, _VERSIONED}),
        query_service_pb2.FetchWindowsRequest: frozenset({_WINDOW}),
        query_service_pb2.FetchSessionsRequest: frozenset({_SESSION}),
        query_service_pb2.GetAsOfRequest: frozenset({_VERSIONED}),
        query_service_pb2.GetHistoryRequest: frozenset({_VERSIONED}),
    }
)
"""The kinds of stores of which the data plane answers a request."""
_UNPAGED: Final = (query_service_pb2.GetRequest, query_service_pb2.GetAsOfRequest, query_service_pb2.CountRequest)
_REFUSES_NEGATIVE: Final = (query_service_pb2.GetAsOfRequest, query_service_pb2.GetHistoryRequest)
_REFUSES_EXCHANGED: Final = (query_service_pb2.FetchWindowsRequest, query_service_pb2.GetHistoryRequest)


@dataclass(frozen=True, slots=True)
class Held:
    """A replica of the data plane: the next offset that it needs, the last known end of its log, and what it shows."""

    position: int
    end: serving_pb2.ServingEnd | None
    moments: serving_pb2.ServingMoments | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition of a read, the number of its store, and its stamp."""

    partition: int
    number: int
    held: Held
    stamp: types_pb2.ReplicaStamp


@dataclass(frozen=True, slots=True)
class Admitted:
    """A read that the data plane answers.

    Attributes:
        replicas: the number of each partition's store, and its stamp.
        form: how values are shown.
        key: the serialized key; None if it isn't about one.
        left: of a page, the keys that are left to read: of entries if it is about one key.
        entries: of a page, how many it may have.
        moment: which batch it may be of, None: of what there is.

    """

    replicas: Sequence[tuple[int, types_pb2.ReplicaStamp]]
    form: serving_pb2.ValueForm.ValueType = serving_pb2.VALUE_FORM_UNSPECIFIED
    key: bytes | None = None
    left: KeyRange | None = None
    entries: int = 0
    moment: MomentBound | None = None


def admitted(  # noqa: C901, PLR0911 - each return is an obstacle
    snapshot: serving_pb2.ServingSnapshot,
    held: Callable[[int], Held],
    reports: Mapping[str, serving_pb2.ServingReport],
    request: ReadRequest,
    now_us: int,
) -> Admitted | Obstacle:
    """Return what a read is answered by, or why that is Python's to do.

    Args:
        snapshot: what the node has decided; it holds.
        held: returns the replica of a number, which is open.
        reports: what processors last reported, by store.
        request: the read.
        now_us: monotonic clock, in microseconds, of before the read.

    """
    bound = _bound(request)
    if bound is None:
        return serving_pb2.SERVING_OBSTACLE_NOT_PLAIN
    store = next((each for each in snapshot.stores if each.name == request.store), None)
    if store is None:
        return serving_pb2.SERVING_OBSTACLE_UNKNOWN_STORE
    if store.kind not in KINDS[type(request)]:
        return serving_pb2.SERVING_OBSTACLE_KIND
    if request.forwarding.epoch not in {0, snapshot.epoch}:
        return serving_pb2.SERVING_OBSTACLE_EPOCH
    if bound.moment is not None and not bound.moment.is_of(snapshot.version):
        return serving_pb2.SERVING_OBSTACLE_MOMENT
    asked = _asked(store, request, snapshot.version)
    if not isinstance(asked, Admitted):
        return asked
    partitions = _partitions(store, request, asked.key)
    if not partitions:
        return serving_pb2.SERVING_OBSTACLE_PARTITION
    parts = _parts(store, partitions, held, reports.get(store.name), bound, now_us)
    if not isinstance(parts, Sequence):
        return parts
    if asked.moment is not None:
        moments = _moments(bound, asked.moment, store.name, parts)
        if moments is None:
            return serving_pb2.SERVING_OBSTACLE_MOMENT
        for part, moment in zip(parts, moments, strict=True):
            moment.mark(part.stamp)
    return replace(asked, replicas=[(part.number, part.stamp) for part in parts])


def _parts(
    store: serving_pb2.ServingStore,
    partitions: Sequence[int],
    held: Callable[[int], Held],
    report: serving_pb2.ServingReport | None,
    bound: Freshness,
    now_us: int,
) -> Sequence[_Part] | Obstacle:
    """Return the replicas of partitions, which are within bounds as they are."""
    parts: list[_Part] = []
    for index, partition in enumerate(partitions):
        replica = next((each for each in store.replicas if each.partition == partition), None)
        if replica is None or partition in partitions[:index]:
            return serving_pb2.SERVING_OBSTACLE_PARTITION
        of = held(replica.store)
        known = _known(replica, of, report, now_us)
        if known is None or (bound is not ANY and violation(bound, known, store.name, partition) is not None):
            return serving_pb2.SERVING_OBSTACLE_NO_END if known is None else serving_pb2.SERVING_OBSTACLE_BOUND
        parts.append(_Part(partition, replica.store, of, _stamp(replica.head, known)))
    return parts


def _bound(request: ReadRequest) -> Freshness | None:
    """Return a plain read's bound; None if it isn't plain."""
    bound = request.freshness
    if not _is_plain(request) or bound.HasField("max_value_age_ms") or len(bound.at_least.positions) > _POSITIONS_MAX:
        return None
    if any(each.version for each in bound.at_least.positions):
        return None
    try:
        return Freshness.from_proto(request.freshness)
    except ValueError:
        return None


def _is_plain(request: ReadRequest) -> bool:
    """Whether a read has no more than what it is of, a bound and the sender's epoch, and no times that are refused."""
    forwarding = request.forwarding
    if forwarding.traceparent or forwarding.HasField("partition") or forwarding.hops > _HOPS_MAX:
        return False
    if isinstance(request, query_service_pb2.ScanRequest):
        is_placed_twice = bool(request.partitions) and request.HasField("partition")
        return not (request.HasField("as_of_ms") or is_placed_twice) and None not in _forms(request)
    if forwarding.entry_keys:
        return False
    if isinstance(request, query_service_pb2.CountRequest):
        return True
    return request.key.WhichOneof("key") is not None and not _refuses_times(request)


def _forms(request: query_service_pb2.ScanRequest) -> list[str | None]:
    """Return how the keys that bound a scan are given."""
    bounds = [getattr(request, name) for name in ("from_key", "to_key", "prefix") if request.HasField(name)]
    return [bound.WhichOneof("key") for bound in bounds]


def _refuses_times(request: KeyedRequest) -> bool:
    """Whether a request has times that are refused: before 1970, or the first behind the last."""
    known: Any = request
    names = [name for name in ("from_ms", "to_ms", "as_of_ms") if name in known.DESCRIPTOR.fields_by_name]
    times = [getattr(known, name) for name in names if known.HasField(name)]
    if isinstance(request, _REFUSES_NEGATIVE) and any(each < 0 for each in times):
        return True
    return isinstance(request, _REFUSES_EXCHANGED) and times != sorted(times)


def _asked(store: serving_pb2.ServingStore, request: ReadRequest, version: str) -> Admitted | Obstacle:
    """Return what a read is of, without replicas; `version`: the node's."""
    try:
        if isinstance(request, _UNPAGED):
            moment = MomentBound.from_proto(request.freshness.moment) if request.freshness.HasField("moment") else None
        else:
            moment = bound_of_page(request)
    except LookupFailure:
        return serving_pb2.SERVING_OBSTACLE_KEY
    if isinstance(request, query_service_pb2.CountRequest):
        return Admitted((), moment=moment)
    form = serving_pb2.VALUE_FORM_RAW if request.raw else store.value_form
    try:
        if isinstance(request, query_service_pb2.ScanRequest):
            asked = Admitted(
                (), form, None, _left(_keys(store.key_form, request), request, version), page_size(request), moment
            )
        else:
            key = _serialized(store.key_form, request.key)
            asked = Admitted((), form, key, moment=moment)
            if not isinstance(request, query_service_pb2.GetRequest | query_service_pb2.GetAsOfRequest):
                prefix = ordered_keys.escaped(key)
                entries = KeyRange(prefix, after_prefix(prefix), request.reverse)
                asked = Admitted((), form, key, _left(entries, request, version), page_size(request), moment)
    except (ValueError, LookupFailure):
        return serving_pb2.SERVING_OBSTACLE_KEY
    return serving_pb2.SERVING_OBSTACLE_VALUE if form == serving_pb2.VALUE_FORM_UNSPECIFIED else asked


def _serialized(form: express_pb2.KeyForm.ValueType, key: types_pb2.Key) -> bytes:
    """Return a key's bytes.

    Raises:
        ValueError: it is text that only Python can read.

    """
    if key.WhichOneof("key") == "raw":
        return key.raw
    if form not in _KEY_SERDES:
        raise ValueError
    return SERDES[_KEY_SERDES[form]].parse(key.text)


def _keys(form: express_pb2.KeyForm.ValueType, request: query_service_pb2.ScanRequest) -> KeyRange:
    """Return the range of a scan.

    Raises:
        ValueError, LookupFailure: it is Python's to say what that is, or to refuse it.

    """
    forms, serde = set(_forms(request)), "string"
    if form != express_pb2.KEY_FORM_TEXT and "text" in forms:
        serde = _KEY_SERDES.get(form, "")
        if not serde or forms != {"text"} or request.HasField("prefix"):
            raise ValueError
    if form == express_pb2.KEY_FORM_UNSPECIFIED and not request.raw:
        raise ValueError
    whole = query_service_pb2.ScanRequest()
    whole.CopyFrom(request)
    whole.ClearField("page_token")
    keys = key_range(whole, SERDES[serde])
    if keys.start == keys.stop:  # no number is in it
        raise ValueError
    return keys


def _left(keys: KeyRange, request: PagedRequest, version: str) -> KeyRange:
    """Return the part of a range that the token leaves to read.

    Raises:
        ValueError, LookupFailure: the token is not as it is written for this request.

    """
    if request.page_token:
        last = after_page(KeyRange(), request).start[:-1]
        if next_page_token(request, last, moment_of_walk(request), version) != request.page_token:
            raise ValueError
    return after_page(keys, request)


def _partitions(store: serving_pb2.ServingStore, request: ReadRequest, key: bytes | None) -> Sequence[int]:
    """Return the partitions to read; none if Python has to say which."""
    if key is not None:
        return (partition_for(key, store.partition_count),)
    assert isinstance(request, query_service_pb2.ScanRequest | query_service_pb2.CountRequest)  # noqa: S101 - no key
    if request.HasField("partition"):
        return (request.partition,)
    if isinstance(request, query_service_pb2.CountRequest):
        return range(store.partition_count) if store.is_global else ()
    return () if store.is_global else request.partitions


def _known(
    replica: serving_pb2.ServingReplica,
    held: Held,
    report: serving_pb2.ServingReport | None,
    now_us: int,
) -> ReplicaFreshness | None:
    """Return what is known of a replica now; None if no end of its log is."""
    if (end := held.end) is None:
        return None
    known = ReplicaFreshness(
        Role.ACTIVE if replica.is_active else Role.STANDBY,
        confirmed=True,
        lag=max(0, end.offset - held.position) if now_us <= end.holds_until_us else None,
        staleness_ms=_since_ms(end.at_end_us, now_us) if end.HasField("at_end_us") else None,
        position=held.position,
    )
    if report is None or not report.HasField("at_us"):
        return known
    backlog = report.input_backlog if report.HasField("input_backlog") else None
    return replace(known, processor_age_ms=_since_ms(report.at_us, now_us), input_backlog=backlog)


def _since_ms(at_us: int, now_us: int) -> int:
    return max(0, (now_us - at_us) // _MS_US)


def _moments(bound: Freshness, moment: MomentBound, store: str, parts: Sequence[_Part]) -> Sequence[Chosen] | None:
    """Return what partitions of a store are read as of: the newest batch that all of them show; None if none is."""
    query_ids = {"" if part.held.moments is None else part.held.moments.query_id for part in parts}
    if len(query_ids) > 1 or "" in query_ids:
        return None
    most = _ANY_BATCH
    while True:
        found: list[Chosen] = []
        for part in parts:
            if (one := _moment(bound, moment, store, part, most)) is None:
                return None
            found.append(one)
        most = min(one.batch_id for one in found)
        if all(one.batch_id == most for one in found):
            return found


def _moment(bound: Freshness, moment: MomentBound, store: str, part: _Part, most: int) -> Chosen | None:
    """Return the newest batch up to one that a partition may be read as of; None if there is none."""
    shown, partition = part.held.moments or serving_pb2.ServingMoments(), part.partition
    least = 0 if bound.at_least is None else bound.at_least.position(store, partition)
    known = KnownMoments(shown.query_id)
    known.batches.extend((batch, {partition: end}) for batch, end in zip(shown.batch_ids, shown.ends, strict=True))
    found = chosen(
        moment, known, store, partition, part.held.position, lambda batch, end: batch <= most and end >= least
    )
    return None if isinstance(found, Missed) else found


def _stamp(head: bytes, known: ReplicaFreshness) -> types_pb2.ReplicaStamp:
    stamp = types_pb2.ReplicaStamp.FromString(head)
    stamp.MergeFrom(
        types_pb2.ReplicaStamp(
            position=known.position,
            lag=known.lag,
            staleness_ms=known.staleness_ms,
            processor_age_ms=known.processor_age_ms,
            input_backlog=known.input_backlog,
        )
    )
    return stamp
