"""The failure of a lookup that no replica answered: every candidate, its first reason, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from router.choice.attempt_log import NO_MOMENT, AttemptLog
from router.choice.candidates import Eligibility, Suspicion, Verdict, judge
from router.fleet.table import PartitionRoutes, RoutingTable
from statehouse.contract.consistency import Freshness
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import errors_pb2

_SUMMARY = {
    Reason.NO_REPLICA_AVAILABLE: "no replica could answer ({where})",
    Reason.OVERLOADED: "every replica that could answer is overloaded ({where})",
    Reason.STORE_NOT_BUILT: "nothing has been committed into the store yet ({where})",
    Reason.TOPIC_CHANGED: "the store's topic is not as it must be ({where})",
    Reason.POSITION_NOT_REACHED: "no replica that was asked has reached the position ({where})",
    Reason.MOMENT_NOT_REACHED: "no replica that was asked has reached a batch that the read may be of ({where})",
    Reason.MOMENT_GONE: "no replica keeps the batch that the read is to be of ({where})",
    Reason.MOMENTS_UNAVAILABLE: "no replica shows the store as of a batch ({where})",
    Reason.DEADLINE_EXCEEDED: "the deadline passed before a replica answered ({where})",
}

_OF_STORE = frozenset({Reason.STORE_NOT_BUILT, Reason.TOPIC_CHANGED})
"""Reasons that hold for a store at every node: no replica is missing, and another node would change nothing."""

_HOW_FAR = ("position", "query_id", "newest", "wanted")


def summed_up(
    table: RoutingTable | None,
    routes: PartitionRoutes,
    bound: Freshness,
    suspects: Mapping[str, Suspicion],
    attempt_log: AttemptLog,
    *,
    is_late: bool,
) -> LookupFailure:
    """Return the failure of a lookup: NO_REPLICA_AVAILABLE, or a reason that describes all candidates better."""
    reasons = {failure.reason for failure in attempt_log.latest.values()}
    furthest = attempt_log.furthest
    if furthest is not None:
        reason = furthest.reason
    elif is_late:
        reason = Reason.DEADLINE_EXCEEDED
    elif reasons == {Reason.OVERLOADED}:
        # A separate reason, so that the caller sends less instead of trying again.
        reason = Reason.OVERLOADED
    elif len(reasons) == 1 and reasons <= _OF_STORE:
        (reason,) = reasons
    elif reasons and reasons <= NO_MOMENT:
        reason = Reason.MOMENT_GONE if Reason.MOMENT_GONE in reasons else Reason.MOMENTS_UNAVAILABLE
    else:
        reason = Reason.NO_REPLICA_AVAILABLE
    where = f"store {routes.store}, partition {routes.partition}, epoch {routes.epoch}"
    parts = [_SUMMARY[reason].format(where=where)]
    if reason not in _OF_STORE:
        parts.append(_shape(table, routes))
    metadata = {"store": routes.store, "partition": str(routes.partition), "epoch": str(routes.epoch)}
    if attempt_log.failures:
        replica, first = next(iter(attempt_log.failures.values()))
        parts.append(f"first failure: {replica.instance_id}: {first.reason.name}: {first.message}")
        metadata["first_reason"] = first.reason.name
    if attempt_log.refused:
        parts.append(f"the retry budget had nothing left for a {attempt_log.refused}")
        metadata["retry_budget_refused"] = attempt_log.refused
    if furthest is not None:
        metadata |= {name: furthest.metadata[name] for name in _HOW_FAR if name in furthest.metadata}
    candidates = _candidates(routes, bound, suspects, attempt_log)
    message = "; ".join(part for part in parts if part)
    return LookupFailure(reason, message, metadata, route=routes.route(), candidates=candidates)


def _candidates(
    routes: PartitionRoutes, bound: Freshness, suspects: Mapping[str, Suspicion], attempt_log: AttemptLog
) -> list[errors_pb2.Candidate]:
    """Return every replica and why it gave no answer, the asked ones first, in order."""
    asked = [
        Verdict(replica, Eligibility.EXCLUDED, failure.reason, failure.message).to_proto()
        for replica, failure in attempt_log.failures.values()
    ]
    unasked = []
    for verdict in judge(routes, bound, suspects):
        if verdict.replica.instance_id in attempt_log.failures:
            continue
        candidate = verdict.to_proto()
        if verdict.eligibility is not Eligibility.EXCLUDED and not candidate.detail:
            candidate.detail = "not asked: the time was up"
        unasked.append(candidate)
    return asked + unasked


def _shape(table: RoutingTable | None, routes: PartitionRoutes) -> str:
    """Say what the assignment itself lacks."""
    store = None if table is None else table.stores.get(routes.store)
    if store is not None and store.spec.is_global:
        return f"nodes with a copy of this global store: {len(routes.replicas)}; every node that starts gets one"
    if not routes.replicas:
        return "the assignment names no node for the partition: start one, or wait for the processor to assign it"
    if len(routes.replicas) > 1:
        return ""
    if store is not None and store.spec.ephemeral:
        return "an ephemeral store never has standbys: it can be read again, empty, once it has moved"
    if store is not None and store.has_standbys:
        return "the partition has no standby at the moment"
    return "no standby is configured for this store: set num_standby_replicas and run a second node"
