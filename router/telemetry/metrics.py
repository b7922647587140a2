"""The router's metrics. Labels are few: the assignment bounds the stores, the contract bounds the reasons."""

from __future__ import annotations

from collections.abc import Sequence
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

    statehouse_router_lookups_total{store, outcome, role}: outcome is OK or a reason; role is the answering node's role
        in the routing table, empty if none answered.
    statehouse_router_express_lookups_total{store, role}: those of them that the proxy sent to a node on its own and
        that were answered in time; each of a batch counts, without a role.
    statehouse_router_express_handed_total{reason}: lookups that the proxy sent to a node and then handed over. The
        reason is "LATE" if the node had not answered in time; else the reason of its refusal or of the failed call. It
        is "PARTLY" if the node answered them, but others of the batch, there or elsewhere, did not go well, and
        "UNKNOWN" if nothing is known of the call.
    statehouse_router_attempts_total{reason}: calls to nodes, where each coalesced lookup counts: OK, the reason of the
        failure, or CANCELLED if another answer came first or a hedge's caller left. For a watch: the reason why a
        node's stream ended.
    statehouse_router_coalesced_lookups: lookups in a call that carried more than one.
    statehouse_router_hedges_total{outcome}: lookups whose first answer was late and that had another replica to ask:
        "won", it answered first; "lost", it did not; "refused", the retry budget had no room.
    statehouse_router_retries_total{outcome}: attempts after one that ran out of time, "sent" or "refused".
    statehouse_router_holds_total{outcome}: lookups that nobody could answer yet: "held"; or failed because the router
        holds as many as it may ("full"), or the partition's last window is over or not long ago ("too_soon").
    statehouse_router_held_lookups: how many are held.
    statehouse_router_suspicions_total{state}: times a node became "slow", "silent" or "down"; it is then asked last.
    statehouse_router_backoffs_total{cause}: pauses before another try: "probe" of a node that is asked last, "watch" of
        a partition that nobody could go on with.
    statehouse_router_lookup_duration_seconds{store}: from receipt to answer.
    statehouse_router_open_lookups: how many are under way; max_lookups bounds them.
    statehouse_router_max_lookups: that bound.
    statehouse_router_open_watches: how many callers watch stores.
    statehouse_router_open_fleet_watches: how many callers watch the fleet; clients that go straight to nodes do.
    """

    def __init__(self) -> None:
        self.registry = new_registry()
        self.security = SecurityMetrics(self.registry, "statehouse_router")
        self._lookups = Counter(
            "statehouse_router_lookups",
            "Lookups by outcome and by the answering node's role",
            ("store", "outcome", "role"),
            registry=self.registry,
        )
        attempts = Counter(
            "statehouse_router_attempts", "Calls to nodes by their outcome", ("reason",), registry=self.registry
        )
        self._express = Counter(
            "statehouse_router_express_lookups",
            "Lookups that the proxy sent to a node by itself and that were answered in time",
            ("store", "role"),
            registry=self.registry,
        )
        self._handed = Counter(
            "statehouse_router_express_handed",
            "Lookups that the proxy sent to a node and handed over to the router, by the reason",
            ("reason",),
            registry=self.registry,
        )
        self._hedges = Counter(
            "statehouse_router_hedges",
            "Second replicas asked beside one that was late, by outcome",
            ("outcome",),
            registry=self.registry,
        )
        self._retries = Counter(
            "statehouse_router_retries",
            "Attempts after one that ran out of time: sent, or refused by the retry budget",
            ("outcome",),
            registry=self.registry,
        )
        self._holds = Counter(
            "statehouse_router_holds",
            "Lookups that nobody could answer yet, by what was done",
            ("outcome",),
            registry=self.registry,
        )
        self.held = Gauge("statehouse_router_held_lookups", "Lookups that are held", registry=self.registry)
        self._suspicions = Counter(
            "statehouse_router_suspicions",
            "Times a node became slow, silent or down and is asked last, by that state",
            ("state",),
            registry=self.registry,
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
        self.open_lookups = Gauge("statehouse_router_open_lookups", "Lookups under way", registry=self.registry)
        self.max_lookups = Gauge(
            "statehouse_router_max_lookups", "Most lookups that may be under way", registry=self.registry
        )
        self.open_watches = Gauge(
            "statehouse_router_open_watches", "Watches of stores that are open", registry=self.registry
        )
        self.open_fleet_watches = Gauge(
            "statehouse_router_open_fleet_watches", "Watches of the fleet that are open", registry=self.registry
        )
        self.paused = count_pauses("router", self.registry)
        # Finding a labelled child takes longer than counting in it.
        self._counter = cache(self._labelled)
        self._attempts = cache(attempts.labels)

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
        self._counter(store, "OK", role).inc(count)
        self._express.labels(store, role.name).inc(count)
        self.attempts_well(count)
        duration = self._durations.labels(store)
        for nth, took_s in enumerate(times_s):
            duration.add(took_s, count * (nth + 1) // len(times_s) - count * nth // len(times_s))

    def express_batches(self, store: str, count: int) -> None:
        """Count lookups of batches that the proxy sent to nodes on its own and that were answered."""
        self.lookups(store, "OK", count)
        self._express.labels(store, "").inc(count)

    def attempts_well(self, number: int) -> None:
        """Count calls that nodes answered."""
        self._attempts("OK").inc(number)

    def handed(self, reason: str, lookups: int = 1) -> None:
        """Count lookups that the proxy sent to a node and handed over."""
        self._handed.labels(reason).inc(lookups)

    def _labelled(self, store: str, outcome: str, role: Role | None) -> Counter:
        return self._lookups.labels(store, outcome, "" if role is None else role.name)

    def attempt(self, reason: str) -> None:
        """Count a call to a node."""
        self._attempts(reason).inc()

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
