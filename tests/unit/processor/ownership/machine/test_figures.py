"""How a controller's fleet stands, in numbers."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from processor.ownership.machine.figures import OwnershipFigures, PlacedTasks
from processor.reports.metrics import ProcessorMetrics
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.topology import TaskId
from tests.support.metrics import scrape_registry

TASKS = tuple(TaskId(0, partition) for partition in range(4))


def assignment(*holders: TaskAssignment) -> Assignment:
    return Assignment(3, tasks=MappingProxyType(dict(zip(TASKS, holders, strict=False))))


def test_tasks_that_move_and_tasks_without_an_active_are_counted():
    placed = assignment(
        TaskAssignment("a"), TaskAssignment("a", ("b",), ("c",)), TaskAssignment(None, ("b",)), TaskAssignment("b")
    )
    assert PlacedTasks.of(placed, TASKS) == PlacedTasks(moves=1, unplaced=1)


def test_a_task_that_the_assignment_does_not_name_has_no_active():
    assert PlacedTasks.of(assignment(TaskAssignment("a")), TASKS) == PlacedTasks(moves=0, unplaced=3)
    assert PlacedTasks.of(Assignment(), ()) == PlacedTasks()


@pytest.mark.feature("proxy-routing-table")
def test_the_figures_are_shown_while_the_controller_acts():
    metrics = ProcessorMetrics()
    assert scrape_registry(metrics.registry).families["statehouse_processor_controller_epoch"].samples == []
    metrics.controller.ownership.take(OwnershipFigures(3, 5, 1, 4, PlacedTasks(2, 1), 6, 0.5))
    scraped = scrape_registry(metrics.registry)
    shown = {
        name: scraped.value(f"statehouse_processor_controller_{name}") for name in ("epoch", "live_nodes", "moves")
    }
    assert shown == {"epoch": 3, "live_nodes": 5, "moves": 2}
    assert scraped.value("statehouse_processor_controller_unplaced_tasks") == 1
    assert scraped.value("statehouse_processor_controller_under_replicated_tasks") == 6
    metrics.controller.ownership.take(None)
    assert scrape_registry(metrics.registry).families["statehouse_processor_controller_moves"].samples == []


def test_plans_are_counted_with_their_times():
    metrics = ProcessorMetrics()
    metrics.controller.planned(0.02, changes=True)
    metrics.controller.planned(0.3, changes=False)
    scraped = scrape_registry(metrics.registry)
    assert scraped.value("statehouse_processor_controller_plans_total", outcome="changed") == 1
    assert scraped.value("statehouse_processor_controller_plans_total", outcome="unchanged") == 1
    assert scraped.value("statehouse_processor_controller_plan_seconds_sum") == 0.32
