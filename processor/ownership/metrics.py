"""Metrics of an ownership controller and of its fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from processor.ownership.acting import ControllerCallbacks
from processor.ownership.machine.figures import OwnershipFigures
from processor.states.processor_states import ProcessorStates
from statehouse.observability.unreadable_records import UnreadableRecords
from statehouse.runtime.backoff import OnPause

_PLAN_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)

_FLEET: Mapping[str, tuple[str, Callable[[OwnershipFigures], float]]] = {
    "epoch": ("Epoch of the assignment in force.", lambda figures: figures.epoch),
    "live_nodes": ("Nodes whose sessions last.", lambda figures: figures.live_nodes),
    "damped_nodes": ("Nodes that get nothing new, because they don't stay.", lambda figures: figures.damped_nodes),
    "tasks": ("Tasks that there should be.", lambda figures: figures.tasks),
    "moves": ("Tasks whose next active is being built.", lambda figures: figures.placed.moves),
    "unplaced_tasks": ("Tasks without an active.", lambda figures: figures.placed.unplaced),
    "under_replicated_tasks": ("Tasks with too few copies.", lambda figures: figures.under_replicated),
    "kafka_silence_seconds": ("For how long Kafka is out of contact.", lambda figures: figures.kafka_silence_s),
}


class ControllerMetrics:
    """What a controller does.

    Attributes:
        unreadable: the records of control topics that it has skipped.
        ownership: what it last said of its fleet while it acted.

    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.unreadable = UnreadableRecords(registry, "statehouse_processor")
        self._rebalances = Counter(
            "statehouse_processor_rebalances",
            "Assignments published that changed tasks.",
            registry=registry,
        )
        self._plans = Counter(
            "statehouse_processor_controller_plans",
            "Plans of the ownership controller, by whether an assignment changes.",
            ("outcome",),
            registry=registry,
        )
        self._early_losses = Counter(
            "statehouse_processor_controller_early_losses",
            "Nodes that were taken for gone before their session timeout, as their addresses refused connections.",
            registry=registry,
        )
        self._plan_s = Histogram(
            "statehouse_processor_controller_plan_seconds",
            "Time of a plan.",
            buckets=_PLAN_BUCKETS_S,
            registry=registry,
        )
        self.ownership = OwnershipCollector()
        registry.register(self.ownership)

    def callbacks(
        self, states: ProcessorStates, on_pause: OnPause, on_fatal: Callable[[Exception], None]
    ) -> ControllerCallbacks:
        """Return what a controller is to call, so that its work is counted here and its state is known."""
        return ControllerCallbacks(
            on_fatal=on_fatal,
            on_rebalance=self._rebalances.inc,
            on_pause=on_pause,
            on_state=states.controller_to,
            on_plan=self.planned,
            on_early_loss=self._early_losses.inc,
            on_figures=self.ownership.take,
            on_unreadable=self.unreadable.note,
            on_unsigned=self.unreadable.unsigned,
        )

    def planned(self, took_s: float, *, changes: bool) -> None:
        """Count a plan that took so many seconds."""
        self._plans.labels("changed" if changes else "unchanged").inc()
        self._plan_s.observe(took_s)


class OwnershipCollector(Collector):
    """Shows how the fleet stands by the controller of this process, and nothing while another one acts."""

    def __init__(self) -> None:
        self._figures: OwnershipFigures | None = None

    def take(self, figures: OwnershipFigures | None) -> None:
        """Take what the controller says; None while it doesn't act. Any thread may call it."""
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not collect."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Read everything once."""
        figures = self._figures
        for name, (meaning, value_in) in _FLEET.items():
            family = GaugeMetricFamily(f"statehouse_processor_controller_{name}", meaning)
            if figures is not None:
                family.add_metric((), value_in(figures))
            yield family
