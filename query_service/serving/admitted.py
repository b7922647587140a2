"""Which lookups the data plane answers on its own, and what their stamps say. Pure.

A node compiles what it has decided into a snapshot. `admitted` is the rule, for one lookup: the program does the same
in Go (`dataplane/admit`), and tests hold the two together. A lookup is answered only if nothing speaks against it. What
would be refused, or has to wait, is Python's, which says why in words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from statehouse.contract.consistency import ANY, Freshness, ReplicaFreshness, violation
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import Role
from statehouse.control.v1 import express_pb2, serving_pb2
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

_HOPS_MAX: Final = 1
_POSITIONS_MAX: Final = 1_000
"""A token of more positions is Python's to read."""
_MS_US: Final = 1_000
_KEY_SERDES: Final = {express_pb2.KEY_FORM_TEXT: "string", express_pb2.KEY_FORM_LONG: "long"}

Obstacle: TypeAlias = serving_pb2.ServingObstacle.ValueType


@dataclass(frozen=True, slots=True)
class Held:
    """A replica of the data plane: the next offset that it needs, and the last known end of its log."""

    position: int
    end: serving_pb2.ServingEnd | None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A lookup that the data plane answers: its store's number, the serialized key, the value's form, the stamp."""

    store: int
    key: bytes
    form: serving_pb2.ValueForm.ValueType
    stamp: types_pb2.ReplicaStamp


def admitted(  # noqa: PLR0911 - each return is an obstacle
    snapshot: serving_pb2.ServingSnapshot,
    held: Callable[[int], Held],
    reports: Mapping[str, serving_pb2.ServingReport],
    request: query_service_pb2.GetRequest,
    now_us: int,
) -> Admitted | Obstacle:
    """Return what a lookup is answered by, or why that is Python's to do.

    Args:
        snapshot: what the node has decided; it holds.
        held: returns the replica of a number, which is open.
        reports: what processors last reported, by store.
        request: the lookup.
        now_us: monotonic clock, in microseconds, of before the read.

    """
    bound = _bound(request)
    if bound is None:
        return serving_pb2.SERVING_OBSTACLE_NOT_PLAIN
    store = next((each for each in snapshot.stores if each.name == request.store), None)
    if store is None:
        return serving_pb2.SERVING_OBSTACLE_UNKNOWN_STORE
    if request.forwarding.epoch not in {0, snapshot.epoch}:
        return serving_pb2.SERVING_OBSTACLE_EPOCH
    key = _serialized(store.key_form, request.key)
    form = serving_pb2.VALUE_FORM_RAW if request.raw else store.value_form
    if key is None or form == serving_pb2.VALUE_FORM_UNSPECIFIED:
        return serving_pb2.SERVING_OBSTACLE_KEY if key is None else serving_pb2.SERVING_OBSTACLE_VALUE
    partition = partition_for(key, store.partition_count)
    replica = next((each for each in store.replicas if each.partition == partition), None)
    if replica is None:
        return serving_pb2.SERVING_OBSTACLE_PARTITION
    known = _known(replica, held(replica.store), reports.get(store.name), now_us)
    if known is None:
        return serving_pb2.SERVING_OBSTACLE_NO_END
    if bound is not ANY and violation(bound, known, store.name, partition) is not None:
        return serving_pb2.SERVING_OBSTACLE_BOUND
    return Admitted(replica.store, key, form, _stamp(replica.head, known))


def _bound(request: query_service_pb2.GetRequest) -> Freshness | None:
    """Return a plain lookup's bound; None if it has more than a store, a key, a bound and the sender's epoch."""
    forwarding, freshness = request.forwarding, request.freshness
    if forwarding.traceparent or forwarding.entry_keys or forwarding.HasField("partition"):
        return None
    if forwarding.hops > _HOPS_MAX or request.key.WhichOneof("key") is None:
        return None
    if len(freshness.at_least.positions) > _POSITIONS_MAX:
        return None
    try:
        return Freshness.from_proto(freshness)
    except ValueError:
        return None


def _serialized(form: express_pb2.KeyForm.ValueType, key: types_pb2.Key) -> bytes | None:
    if key.WhichOneof("key") == "raw":
        return key.raw
    if form not in _KEY_SERDES:
        return None
    try:
        return SERDES[_KEY_SERDES[form]].parse(key.text)
    except ValueError:
        return None


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
