"""Which state can be served, and what is said of the others."""

from __future__ import annotations

import json

import pytest

from processor.attach.operators import StateChoice, StateOperator, source_of
from statehouse.errors import ConfigurationError

AGGREGATE = StateOperator(0, "stateStoreSave", "default", 4)
VARIABLES = {"total": "ValueState", "seen": "ListState", "per": "MapState", "$procTimers_keyToTimestamp": "TimerState"}
WITH_VARIABLES = StateOperator(
    1,
    "transformWithStateInPandasExec",
    "default",
    4,
    json.dumps({"stateVariables": [{"stateName": n, "stateVariableType": kind} for n, kind in VARIABLES.items()]}),
)
JOIN = [
    StateOperator(2, "symmetricHashJoin", f"{side}-{store}", 4)
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
]
NEWER_JOIN = StateOperator(3, "symmetricHashJoin", "default", 4)
UNKNOWN = StateOperator(4, "somethingNew", "default", 4)
ALL = [AGGREGATE, WITH_VARIABLES, *JOIN, NEWER_JOIN, UNKNOWN]


@pytest.mark.feature("aggregates-deduplication-joins")
@pytest.mark.parametrize(
    ("choice", "has_changes"),
    [
        (StateChoice(), True),
        (StateChoice(1, variable="total"), True),
        (StateChoice(1, variable="per"), True),
        (StateChoice(1, variable="seen"), False),
        (StateChoice(2, "left-keyWithIndexToValue"), True),
    ],
)
def test_a_state_is_chosen(choice: StateChoice, *, has_changes: bool) -> None:
    source = source_of(ALL, choice)
    assert (source.operator.operator_id, source.operator.state_store) == (choice.operator_id, choice.state_store)
    assert source.is_list is not has_changes
    assert source.is_list is not has_changes


@pytest.mark.feature("aggregates-deduplication-joins")
@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (StateChoice(7), "no operator 7: it has 0 (stateStoreSave), 1 (transformWithStateInPandasExec)"),
        (StateChoice(0, "other"), "no state store 'other': name one of default"),
        (StateChoice(0, variable="total"), "which has no variables"),
        (StateChoice(1), "name one of its state variables (--state-variable), total, seen, per"),
        (StateChoice(1, variable="sum"), "name one of its state variables"),
        (StateChoice(1, variable="$procTimers_keyToTimestamp"), "timers are due times"),
        (StateChoice(2), "name the side, --state-store left-keyWithIndexToValue or right-keyWithIndexToValue"),
        (StateChoice(2, "left-keyToNumValues"), "name the side"),
        (StateChoice(3), "newer form"),
        (StateChoice(4), "is a somethingNew, which can't be served"),
    ],
)
def test_what_can_not_be_served_is_refused_by_name(choice: StateChoice, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        source_of(ALL, choice)
    assert says in str(refused.value)


def test_a_query_without_state_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="it keeps no state"):
        source_of([], StateChoice())
