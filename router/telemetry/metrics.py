"""The router's metrics. Labels are few: the assignment bounds the stores, the contract bounds the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from prometheus_client import Counter, Gauge

from router.choice.hold import HoldOutcome
from statehouse.contract.topology import Role
from statehouse.observability.denials import SecurityMetrics
from statehouse.observability.histograms import OneThreadHistograms
from statehouse.observability.metrics import count_pauses, new_registry

_BATCH_BUCKETS = (2, 5, 10, 25, 50, 100, 250, 500, 1_000)
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class RouterMetrics:
    """The router's own registry and what is in it. Lookups and calls are counted on the event loop.

    docs/metrics.md says what each means.
    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self.security = SecurityMetrics(self.registry, "statehouse_router")
        self._lookups = self._new_counter(
            "lookups", "Lookups by outcome and by the answering node's role", "store", "outcome", "role"
        )
        attempts = self._new_counter("attempts", "Calls to nodes by their outcome", "reason")
        self._express = self._new_counter(
            "express_lookups",
            "Lookups that the proxy sent to a node by itself and that were answered in time",
            "store",
            "role",
        )
        self._handed = self._new_counter(
            "express_handed",
            "Lookups that the proxy sent to a node and handed over to the router, by the reason",
            "reason",
        )
        self._hedges = self._new_counter(
            "hedges", "Second replicas asked beside one that was late, by outcome", "outcome"
        )
        self._retries = self._new_counter(
            "retries", "Attempts after one that ran out of time: sent, or refused by the retry budget", "outcome"
        )
        self._holds = self._new_counter("holds", "Lookups that nobody could answer yet, by what was done", "outcome")
        self._suspicions = self._new_counter(
            "suspicions", "Times a node became slow, silent or down and is asked last, by that state", "state"
        )
        self._coalesced = OneThreadHistograms(
            "statehouse_router_coalesced_lookups",
            "Lookups in each call that carried more than one",
            (),
            _BATCH_BUCKETS,
            self.registry,
        ).labels()
        self._durations = OneThreadHistograms(
            "statehouse_router_lookup_duration_seconds",
            "Time from receipt to answer",
            ("store",),
            _BUCKETS,
            self.registry,
        )
        self._verified = self._new_counter(
            "verified_partitions", "Comparisons of a partition's replicas in the background", "store", "outcome"
        )
        self._wrong_replicas = Gauge(
            "statehouse_router_wrong_replicas",
            "Replicas that differed from the changelog when they were last compared",
            ("store", "node"),
            registry=self.registry,
        )
        self._wrong_nodes: dict[str, set[str]] = {}
        self.held = self._new_gauge("held_lookups", "Lookups that are held")
        self.open_lookups = self._new_gauge("open_lookups", "Lookups under way")
        self.max_lookups = self._new_gauge("max_lookups", "Most lookups that may be under way")
        self.open_watches = self._new_gauge("open_watches", "Watches of stores that are open")
        self.open_fleet_watches = self._new_gauge("open_fleet_watches", "Watches of the fleet that are open")
        self.paused = count_pauses("router", self.registry)
        # Finding a labelled child takes longer than counting in it.
        self._counter = cache(self._labelled)
        self._attempts = cache(attempts.labels)

    def _new_counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"statehouse_router_{name}", meaning, labels, registry=self.registry)

    def _new_gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(f"statehouse_router_{name}", meaning, registry=self.registry)

    def lookup(self, store: str, outcome: str, role: Role | None, seconds: float | None = None) -> None:
        """Count a lookup. `store` must be one of the assignment's, or empty."""
        self._counter(store, outcome, role).inc()
        if seconds is not None:
            self._durations.labels(store).add(seconds)

    def lookups(self, store: str, outcome: str, number: int) -> None:
        """Count lookups of a batch that have the same store and outcome; `store` as in `lookup`."""
        self._counter(store, outcome, None).inc(number)

    def express(self, store: str, role: Role, times_s: Sequence[float], count: int) -> None:
        """Count lookups that the proxy sent to a node on its own and that were answered in time.

        `times_s`: some of their `count` times. All count in the histogram, the others as if like these.
        """
        self.attempt("OK", count)
        self._answered_elsewhere(store, role, times_s, count)

    def express_pages(self, store: str, times_s: Sequence[float], count: int) -> None:
        """Count pages that the proxy put together on its own; `times_s` as in `express`."""
        self._answered_elsewhere(store, None, times_s, count)

    def _answered_elsewhere(self, store: str, role: Role | None, times_s: Sequence[float], count: int) -> None:
        self._counter(store, "OK", role).inc(count)
        self._express.labels(store, "" if role is None else role.name).inc(count)
        duration = self._durations.labels(store)
        for nth, took_s in enumerate(times_s):
            duration.add(took_s, count * (nth + 1) // len(times_s) - count * nth // len(times_s))

    def express_batches(self, store: str, count: int) -> None:
        """Count lookups of batches that the proxy sent to nodes on its own and that were answered."""
        self.lookups(store, "OK", count)
        self._express.labels(store, "").inc(count)

    def handed(self, reason: str, lookups: int = 1) -> None:
        """Count lookups that the proxy sent to a node and handed over."""
        self._handed.labels(reason).inc(lookups)

    def verified(self, store: str, outcome: str) -> None:
        """Count a comparison of a partition's replicas: `equal`, `differs`, or `unchecked`, as it could not be made."""
        self._verified.labels(store, outcome).inc()

    def wrong_replicas(self, store: str, by_node: Mapping[str, int]) -> None:
        """Note how many replicas of a store are known to be wrong, by the nodes that have them."""
        before = self._wrong_nodes.setdefault(store, set())
        for node in before | by_node.keys():  # one that had some shows that it has none any more
            self._wrong_replicas.labels(store, node).set(by_node.get(node, 0))
        before.update(by_node)

    def _labelled(self, store: str, outcome: str, role: Role | None) -> Counter:
        return self._lookups.labels(store, outcome, "" if role is None else role.name)

    def attempt(self, reason: str, calls: int = 1) -> None:
        """Count calls to nodes, by what came of them; of a watch, by why its stream ended."""
        self._attempts(reason).inc(calls)

    def coalesced(self, lookups: int) -> None:
        """Count a call that several lookups share."""
        self._coalesced.add(lookups)

    def hedge(self, outcome: str) -> None:
        """Count a hedge, or one that the retry budget refused."""
        self._hedges.labels(outcome).inc()

    def retry(self, *, is_allowed: bool) -> None:
        """Count an attempt that has to be paid from the retry budget."""
        self._retries.labels("sent" if is_allowed else "refused").inc()

    def hold(self, verdict: HoldOutcome) -> None:
        """Count a lookup that would have failed, where holding is on."""
        if verdict is not HoldOutcome.OFF:
            self._holds.labels(verdict.value).inc()

    def suspicion(self, state: str) -> None:
        """Count a node that came into this state."""
        self._suspicions.labels(state).inc()
