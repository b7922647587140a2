"""Listeners of a processor, installed as packages are: told of each change of state in order, counted if they fail."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from processor.reports.metrics import ProcessorMetrics
from processor.states.lifecycle import ApplicationState, ControllerState, QueryState, RefusedTransition
from processor.states.listeners import PROCESSOR_GROUP, ProcessorListeners, StateLogListener
from processor.states.processor_states import ProcessorStates
from tests.support.metrics import scrape_registry
from tests.support.plugins import install

PLUGIN = """
EVENTS = []

class Recorder:
    def on_application_state(self, old, new): EVENTS.append((old.value, new.value))

class Raising:
    def on_query_state(self, query, old, new): raise RuntimeError("a listener's own fault")

class Deaf: pass
"""


@pytest.mark.feature("states-application-queries")
def test_installed_listeners_are_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points = {name: f"told_plugin:{name}" for name in ("Recorder", "Raising", "Deaf")}
    install(tmp_path, "told_plugin", PROCESSOR_GROUP, entry_points, PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    metrics, listeners = ProcessorMetrics(), ProcessorListeners()
    states = ProcessorStates(listeners)
    metrics.states.watch(states, listeners)
    listeners.add("log", StateLogListener())
    listeners.add("metrics", metrics.states)
    listeners.add_installed()

    states.application_to(ApplicationState.STARTING)
    states.declare(["walks"])
    states.controller_to(ControllerState.STARTING)
    states.query_to("walks", QueryState.RUNNING)
    states.application_to(ApplicationState.RUNNING)
    states.query_to("walks", QueryState.RESTARTING)
    states.query_to("walks", QueryState.RESTARTING)
    states.query_to("walks", QueryState.RUNNING)
    states.query_to("walks", QueryState.ERROR)
    states.fail()
    states.application_to(ApplicationState.PENDING_SHUTDOWN)
    states.fail()
    states.query_to("walks", QueryState.NOT_RUNNING)
    with pytest.raises(RefusedTransition, match="the query can't go from NOT_RUNNING to RUNNING"):
        states.query_to("walks", QueryState.RUNNING)
    states.application_to(ApplicationState.NOT_RUNNING)
    listeners.close(30)

    seen = ["STARTING", "RUNNING", "RESTARTING", "RUNNING", "ERROR", "PENDING_SHUTDOWN", "NOT_RUNNING"]
    assert list(zip(["CREATED", *seen], seen, strict=False)) == importlib.import_module("told_plugin").EVENTS
    shown = scrape_registry(metrics.registry).value
    assert shown("statehouse_processor_listener_failures_total", listener="Raising") == 5
    assert shown("statehouse_processor_state", state="NOT_RUNNING") == 1
    assert shown("statehouse_processor_controller_state", state="STARTING") == 1
    changed = {"query": "walks", "from": "RUNNING", "to": "RESTARTING"}
    assert shown("statehouse_processor_query_state_changes_total", **changed) == 1
