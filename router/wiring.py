"""Wiring: makes the parts of a router from its settings, and connects them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.calls.attempts import Attempts
from router.calls.channels import NodeChannels
from router.calls.coalesce import Coalescer
from router.calls.express_way import ExpressDoor, ExpressWay
from router.calls.group_calls import GroupCalls
from router.calls.health import NodeHealth
from router.choice.answer_times import AnswerTimes
from router.choice.budget import RetryBudget
from router.choice.express import ExpressLimits, standing_obstacle
from router.choice.hold import Holds
from router.fleet.current_table import CurrentTable
from router.lookups.batch import BatchGetter
from router.lookups.dispatch import Dispatcher
from router.lookups.keyed import KeyLookups
from router.lookups.observed import LookupObserver
from router.lookups.overload import LookupLimit
from router.lookups.scatter import Scatter
from router.service import FleetHandlers, LookupParts
from router.telemetry.metrics import RouterMetrics
from router.watches.watch_relay import WatchRelay
from statehouse.link.proxy import Proxy
from statehouse.observability.lookup_log import LookupLog
from statehouse.observability.tracing import Tracing
from statehouse.rpc.credentials import ClientTls, CredentialFiles
from statehouse.rpc.deadline import RequestTimes
from statehouse.security.settings_gate import gates_named
from statehouse.settings import RouterSettings

if TYPE_CHECKING:
    from router.verification import BackgroundVerifier


@dataclass(frozen=True, slots=True)
class NodeCalls:
    """The parts that call nodes, and know how each does."""

    channels: NodeChannels
    health: NodeHealth
    answer_times: AnswerTimes
    coalescer: Coalescer
    attempts: Attempts
    budget: RetryBudget


def request_times(settings: RouterSettings) -> RequestTimes:
    """Return how long a request may take: without a deadline of its caller's, and at most."""
    return RequestTimes(settings.request_timeout_ms / 1_000, settings.max_timeout_ms / 1_000)


def new_express_door(settings: RouterSettings, *, has_proxy: bool) -> ExpressDoor:
    """Return the door to the express way, closed."""
    return ExpressDoor(standing_obstacle(is_on=settings.express, has_proxy=has_proxy))


def new_express_way(
    settings: RouterSettings,
    proxy: Proxy,
    tables: CurrentTable,
    calls: NodeCalls,
    metrics: RouterMetrics,
    version: str,
    after: int,
) -> ExpressWay:
    """Return the express way over a proxy that has been started; `version`, `after`: as for `ExpressCompiler`."""
    bounds = ExpressLimits(
        settings.max_lookups,
        settings.router_max_batch_entries,
        settings.attempt_timeout_ms / 1_000,
        needs_permits=bool(gates_named(settings)),
    )
    return ExpressWay(
        proxy.link,
        tables,
        calls.health,
        calls.answer_times,
        calls.budget,
        metrics,
        bounds=bounds,
        version=version,
        after=after,
    )


def new_calls(
    settings: RouterSettings, proxy: Proxy | None, metrics: RouterMetrics, on_health: Callable[[], None]
) -> NodeCalls:
    """Return the parts that call nodes. `on_health` is called when a node comes under suspicion, or is free of it."""
    attempt_timeout_s = settings.attempt_timeout_ms / 1_000
    channels = NodeChannels(
        proxy,
        max_message_bytes=settings.max_message_bytes,
        close_grace_s=min(settings.stop_grace_ms / 1_000, 2 * attempt_timeout_s),
        files=_files_for_nodes(settings),
    )
    health = NodeHealth(
        channels.probe,
        probe_timeout_s=attempt_timeout_s,
        on_suspicion=metrics.suspicion,
        on_change=on_health,
        on_pause=metrics.paused,
    )
    answer_times = AnswerTimes(
        quantile=settings.hedge_quantile, least_s=settings.hedge_min_ms / 1_000, most_s=attempt_timeout_s
    )
    coalescer = Coalescer(channels.ask, metrics, max_message_bytes=settings.max_message_bytes)
    return NodeCalls(
        channels,
        health,
        answer_times,
        coalescer,
        Attempts(coalescer.ask, health, answer_times),
        RetryBudget(settings.retry_budget_percent, settings.retry_budget_per_s),
    )


def new_lookups(
    settings: RouterSettings,
    tables: CurrentTable,
    calls: NodeCalls,
    metrics: RouterMetrics,
    tracing: Tracing | None,
    limit: LookupLimit,
    newest_moment: Callable[[str], tuple[str, int] | None],
) -> LookupParts:
    """Return the parts that answer lookups.

    `limit`: on those of all versions. `newest_moment`: as `ProcessorQueries` has it.
    """
    attempt_timeout_s = settings.attempt_timeout_ms / 1_000
    lookup_log = LookupLog(settings.lookup_log_sample, has_keys=settings.lookup_log_keys)
    observer = LookupObserver(lookup_log, tracing)
    holds = Holds(
        window_s=settings.hold_window_ms / 1_000,
        most=settings.hold_max,
        min_interval_s=settings.hold_min_interval_ms / 1_000,
    )
    dispatcher = Dispatcher(
        tables, calls.attempts, calls.budget, metrics, attempt_timeout_s=attempt_timeout_s, holds=holds
    )
    keys = KeyLookups(tables, dispatcher)
    groups = GroupCalls(tables, calls.attempts, calls.budget, metrics, attempt_timeout_s=attempt_timeout_s)
    batches = BatchGetter(
        tables,
        limit,
        groups,
        keys,
        metrics,
        max_entries=settings.router_max_batch_entries,
        max_message_bytes=settings.max_message_bytes,
        on_failed=lambda store, reason, lookups: observer.failed(store, "BatchGet", reason, lookups),
    )
    scatter = Scatter(
        tables,
        groups,
        dispatcher,
        metrics,
        max_message_bytes=settings.max_message_bytes,
        newest_moment=newest_moment,
    )
    return LookupParts(holds, dispatcher, keys, limit, batches, scatter, observer)


def new_watches(
    settings: RouterSettings, tables: CurrentTable, calls: NodeCalls, dispatcher: Dispatcher, metrics: RouterMetrics
) -> WatchRelay:
    """Return the part that passes watches on."""
    return WatchRelay(
        tables,
        calls.health,
        calls.channels.stream,
        dispatcher,
        metrics,
        start_s=settings.request_timeout_ms / 1_000,
        resume_s=settings.watch_resume_timeout_ms / 1_000,
        max_watches=settings.max_watches,
        max_watches_per_address=settings.max_watches_per_address,
        max_partitions=settings.max_watched_partitions,
    )


def new_verifier(
    settings: RouterSettings, serving: Callable[[], FleetHandlers], metrics: RouterMetrics
) -> BackgroundVerifier | None:
    """Return what compares stores in the background; None if the settings don't want it.

    `serving`: returns the fleet of the version that serves.
    """
    if not settings.verify_interval_ms:
        return None
    # It needs the client, which most routers can start without.
    from router.verification import BackgroundVerifier  # noqa: PLC0415

    return BackgroundVerifier(
        settings.verify_interval_ms / 1_000,
        settings.verify_bytes_per_second,
        lambda: serving().known_fleet(),
        lambda store: serving().known_partitions(store),
        metrics,
        _tls_for_nodes(settings),
    )


def _files_for_nodes(settings: RouterSettings) -> CredentialFiles | None:
    """Return what to call nodes with; None if nothing is encrypted."""
    tls = _tls_for_nodes(settings)
    return None if tls is None else CredentialFiles(tls)


def _tls_for_nodes(settings: RouterSettings) -> ClientTls | None:
    if settings.tls_certificate is None:
        return None
    name = settings.tls_node_name
    return ClientTls(settings.tls_ca, settings.tls_certificate, settings.tls_key, server_name=name)
