"""A forecast ends where a fleet that restores all it is given ends."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from processor.ownership.planning.forecast import forecast
from processor.ownership.planning.model import NodeView, PlannerSettings
from statehouse.contract.topology import TaskId
from tests.property.ownership.fleets import SimulatedFleet, Situation, situations
from tests.property.ownership.test_planner_properties import check_quiet
from tests.support.examples import given_many


@pytest.mark.feature("would-move-why")
@given_many(st.integers(1, 20), st.lists(st.sampled_from([1, 2, 5]), min_size=2, max_size=6), st.data())
def test_a_forecast_ends_where_the_fleet_does(partitions: int, capacities: list[int], data: st.DataObject) -> None:
    """With nodes joining and leaving, both come to the very same assignment."""
    settings = PlannerSettings(data.draw(st.integers(0, 2), "standbys"), 10_000, data.draw(st.integers(1, 4), "budget"))
    fleet = SimulatedFleet([TaskId(0, part) for part in range(partitions)], settings)
    for number, capacity in enumerate(capacities):
        fleet.join(f"n{number}", capacity=capacity)
    fleet.settle()
    before = fleet.situation
    names = sorted(fleet.racks)
    removed = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1), "removed")
    joins = data.draw(st.sampled_from([None, 1, 3]), "joins")
    added = {} if joins is None else {"new": NodeView(capacity=joins)}
    was = dict(before.current)
    made = forecast(before.nodes, was, settings, added=added, removed=removed)

    if joins is not None:
        fleet.join("new", capacity=joins)
    fleet.leaving |= removed
    epochs = 0
    for _ in range(400):
        before, outcome = fleet.step()
        epochs += outcome.tasks != before.current
        fleet.restore()
        drained = sorted(fleet.leaving - {holders.active for holders in fleet.current.values()})
        for node in drained:
            fleet.die(node)
        if outcome.tasks == before.current and not drained:
            break
    assert made.is_complete
    changed = {change.task: change.now for step in made.steps for change in step}
    assert was | changed == fleet.current
    assert len(made.steps) == epochs
    check_quiet(fleet)


@given_many(situations())
def test_a_forecast_comes_to_rest_from_anywhere(situation: Situation) -> None:
    """It ends, whatever is reported, and there the planner wants nothing more."""
    current = {task: situation.current.get(task) or situation.plan().tasks[task] for task in situation.tasks}
    made = forecast(
        situation.nodes, current, situation.settings, ephemeral=situation.ephemeral, steps_max=len(current) * 20 + 20
    )
    assert made.is_complete
    staying = [node for node, view in situation.nodes.items() if not view.leaving]
    assert [load.node for load in made.after] == sorted(staying)
