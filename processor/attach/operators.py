"""Which state of a query can be served: its operators, and the reasons against those that can't. Pure.

What is known of each operator was tried with Spark 4.2.0 (docs/adr/0013).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from statehouse.errors import ConfigurationError

DEFAULT_STORE: Final = "default"
_AGGREGATIONS: Final = ("stateStoreSave", "sessionWindowStateStoreSave")
_JOIN: Final = "symmetricHashJoin"
_JOIN_ROWS: Final = ("left-keyWithIndexToValue", "right-keyWithIndexToValue")
_WITH_VARIABLES: Final = "transformWithState"
_LIST_STATE: Final = "ListState"
_SERVED_VARIABLES: Final = {"ValueState", "MapState", _LIST_STATE}
# By the beginning of the operator's name in Spark's metadata.
_SERVED: Final = (
    *_AGGREGATIONS,
    "dedupe",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    "globalLimit",
    _WITH_VARIABLES,
    _JOIN,
)


@dataclass(frozen=True, slots=True)
class StateOperator:
    """A state store of an operator, as Spark's `state-metadata` source describes it."""

    operator_id: int
    name: str
    state_store: str
    partitions: int
    properties: str | None = None

    @property
    def is_aggregation(self) -> bool:
        """Whether its values are what aggregates keep between batches."""
        return self.name.startswith(_AGGREGATIONS)

    @property
    def variables(self) -> Mapping[str, str]:
        """The state variables of `transformWithState` -> their types."""
        declared = json.loads(self.properties) if self.properties else {}
        return {each["stateName"]: each["stateVariableType"] for each in declared.get("stateVariables", ())}


@dataclass(frozen=True, slots=True)
class StateChoice:
    """Which state is served: an operator of a query, one of its stores, and one of its variables if it has any."""

    operator_id: int = 0
    state_store: str = DEFAULT_STORE
    variable: str | None = None

    @property
    def options(self) -> str:
        """The options of `attach` that choose it."""
        made = [f"--operator {self.operator_id}"]
        made += [f"--state-store {self.state_store}"] if self.state_store != DEFAULT_STORE else []
        made += [f"--state-variable {self.variable}"] if self.variable is not None else []
        return " ".join(made)


@dataclass(frozen=True, slots=True)
class StateSource:
    """A state that can be served.

    Attributes:
        operator: the operator's state store.
        choice: which it is.
        is_list: whether a key's value is a list, read as one; its changes are elements, which don't say what it is.

    """

    operator: StateOperator
    choice: StateChoice
    is_list: bool = False


def source_of(operators: Sequence[StateOperator], choice: StateChoice) -> StateSource:
    """Return the chosen state.

    Raises:
        ConfigurationError: there is no such state, or it can't be served; the text says why and names what there is.

    """
    of_id = [each for each in operators if each.operator_id == choice.operator_id]
    if not of_id:
        raise ConfigurationError(f"the query has no operator {choice.operator_id}: it has {_listed(operators)}")
    name = of_id[0].name
    if not name.startswith(_SERVED):
        raise ConfigurationError(
            f"operator {choice.operator_id} is a {name}, which can't be served: nobody has tried what its state means"
        )
    found = next((each for each in of_id if each.state_store == choice.state_store), None)
    if name.startswith(_JOIN):
        _check_join(of_id, choice)
    if found is None:
        raise ConfigurationError(
            f"operator {choice.operator_id} ({name}) has no state store {choice.state_store!r}: name one of "
            f"{', '.join(each.state_store for each in of_id)} (--state-store)"
        )
    if name.startswith(_WITH_VARIABLES):
        return StateSource(found, choice, is_list=_variable_type(found, choice) == _LIST_STATE)
    if choice.variable is not None:
        raise ConfigurationError(f"operator {choice.operator_id} is a {name}, which has no variables: leave it out")
    return StateSource(found, choice)


def _check_join(stores: Sequence[StateOperator], choice: StateChoice) -> None:
    if not any(each.state_store in _JOIN_ROWS for each in stores):
        raise ConfigurationError(
            f"operator {choice.operator_id} is a join that keeps its state in a newer form than Spark's reader reads "
            "by key and index; it can't be served"
        )
    if choice.state_store not in _JOIN_ROWS:
        raise ConfigurationError(
            f"operator {choice.operator_id} is a join, with the rows that wait on either side: name the side, "
            f"--state-store {' or '.join(_JOIN_ROWS)}"
        )


def _variable_type(operator: StateOperator, choice: StateChoice) -> str:
    known = operator.variables
    served = [name for name, kind in known.items() if kind in _SERVED_VARIABLES]
    kind = known.get(choice.variable or "")
    if kind is None:
        raise ConfigurationError(
            f"operator {choice.operator_id} is a {operator.name}: name one of its state variables "
            f"(--state-variable), {', '.join(served) or 'of which it has none that can be served'}"
        )
    if choice.variable not in served:
        raise ConfigurationError(
            f"state variable {choice.variable!r} is a {kind}, which can't be served: timers are due times, not values"
        )
    return kind


def _listed(operators: Sequence[StateOperator]) -> str:
    names = {each.operator_id: each.name for each in operators}
    return ", ".join(f"{number} ({name})" for number, name in sorted(names.items())) or "none, it keeps no state"
