"""The states of application, queries and controller: whatever is wanted, only what may follow happens.

Listeners hear of all that happens.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.states.lifecycle import (
    ApplicationState,
    ControllerState,
    QueryState,
    RefusedTransition,
    can_follow,
    next_state,
    settled_state,
)
from processor.states.listeners import ProcessorListeners
from processor.states.processor_states import ProcessorStates

MACHINES = (ApplicationState, QueryState, ControllerState)
QUERIES = ("boards", "ranks")


class Told(ProcessorListeners):
    """Notes what listeners hear."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[str, Any, Any]] = []

    def on_application_state(self, old: ApplicationState, new: ApplicationState) -> None:
        self.changes.append(("application", old, new))

    def on_query_state(self, query: str, old: QueryState, new: QueryState) -> None:
        self.changes.append((query, old, new))

    def on_controller_state(self, old: ControllerState, new: ControllerState) -> None:
        self.changes.append(("controller", old, new))


@pytest.mark.parametrize("machine", MACHINES)
def test_each_machine_begins_ends_and_gets_everywhere(machine: type[Any]) -> None:
    reached, ends = {machine("CREATED")}, set()
    for _ in machine:
        reached |= {state for before in reached for state in machine if can_follow(before, state)}
    for state in machine:
        if not any(can_follow(state, other) for other in machine):
            ends.add(state)
        assert not can_follow(state, state)
        assert not can_follow(state, machine("CREATED")), "nothing begins twice"
    assert reached == set(machine)
    assert ends == {machine("NOT_RUNNING")}
    with pytest.raises(RefusedTransition, match="can't go from NOT_RUNNING to"):
        next_state(machine("NOT_RUNNING"), machine("RUNNING"))


wanted = st.one_of(
    st.tuples(st.just("application"), st.sampled_from(ApplicationState)),
    st.tuples(st.just("controller"), st.sampled_from(ControllerState)),
    st.tuples(st.sampled_from(QUERIES), st.sampled_from(QueryState)),
    st.just(("fail", None)),
)


@pytest.mark.feature("states-application-queries")
@given(st.lists(wanted, max_size=40))
def test_only_what_may_follow_happens_and_listeners_see_all_of_it(log: list[tuple[str, Any]]) -> None:
    told = Told()
    states = ProcessorStates(told)
    states.declare(QUERIES)
    for who, state in log:
        present = {"application": states.application, "controller": states.controller, **states.queries}
        try:
            if who == "fail":
                states.fail()
                continue
            if who == "application":
                states.application_to(state)
            elif who == "controller":
                states.controller_to(state)
            else:
                states.query_to(who, state)
        except RefusedTransition:
            assert not can_follow(present[who], state)
            assert present == {"application": states.application, "controller": states.controller, **states.queries}
        else:
            assert present[who] is state or can_follow(present[who], state)
    for who in ("application", "controller", *QUERIES):
        changes = [(old, new) for name, old, new in told.changes if name == who]
        assert all(can_follow(old, new) for old, new in changes)
        assert all(before[1] is after[0] for before, after in itertools.pairwise(changes)), "no change is left out"
        last = {"application": states.application, "controller": states.controller, **states.queries}[who]
        assert (changes[-1][1] if changes else "CREATED") == last
    if states.application is ApplicationState.NOT_RUNNING:
        assert set(states.queries.values()) == {QueryState.NOT_RUNNING}
    assert states.application is settled_state(states.application, states.queries.values())
