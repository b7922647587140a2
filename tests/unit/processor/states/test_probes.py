"""What a processor and a controller say of themselves: that they have started, are alive, and do all they should."""

from __future__ import annotations

import pytest

from processor.states.lifecycle import ApplicationState, ControllerState, QueryState
from processor.states.probes import SILENCE_MAX_S, not_alive, not_ready, not_ready_to_assign, not_started


@pytest.mark.parametrize("state", ApplicationState)
def test_an_application_has_started_once_it_is_neither_created_nor_starting(state: ApplicationState) -> None:
    assert bool(not_started(state)) is (state in {ApplicationState.CREATED, ApplicationState.STARTING})


@pytest.mark.feature("startup-readiness-liveness")
@pytest.mark.parametrize("state", ApplicationState)
def test_only_one_that_is_given_up_or_hangs_needs_a_restart(state: ApplicationState) -> None:
    assert bool(not_alive(state, None)) is (state is ApplicationState.ERROR)
    hangs = state in {ApplicationState.RUNNING, ApplicationState.RESTARTING, ApplicationState.ERROR}
    assert bool(not_alive(state, SILENCE_MAX_S + 1)) is hangs, "a start and a stop have bounds of their own"
    assert bool(not_alive(state, SILENCE_MAX_S)) is (state is ApplicationState.ERROR)


def test_it_is_ready_while_all_its_queries_run() -> None:
    queries = {"scores": QueryState.RUNNING, "names": QueryState.RUNNING}
    assert not_ready(ApplicationState.RUNNING, queries) == ""
    assert not_ready(ApplicationState.STARTING, queries) == "the application is STARTING"
    restarting = queries | {"names": QueryState.RESTARTING}
    assert not_ready(ApplicationState.RUNNING, restarting) == "query names is RESTARTING"
    assert not_ready(ApplicationState.RESTARTING, restarting) == "the application is RESTARTING"


@pytest.mark.parametrize("state", ControllerState)
def test_a_controller_is_ready_if_it_assigns_or_stands_by(state: ControllerState) -> None:
    assert bool(not_ready_to_assign(state)) is (state not in {ControllerState.RUNNING, ControllerState.STANDBY})
