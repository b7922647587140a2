"""Reads the file that names several states: TOML with a table [[state]] for each.

[[state]]
checkpoint = "/data/clicks"
store = "totals"
[state.values]
n = "count"
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from processor.attach.attachment import AttachedState
from processor.attach.columns.mapping import EntryMapping, OnEntryError
from processor.attach.columns.timed_keys import EntryKind
from processor.attach.operators import DEFAULT_STORE, StateChoice
from statehouse.errors import ConfigurationError
from statehouse.runtime import file_reads

_BYTES_MAX: Final = 1 << 20
_STATES_MAX: Final = 1_000
_KEYS: Final[Mapping[str, type]] = {
    "checkpoint": str,
    "store": str,
    "operator": int,
    "state_store": str,
    "state_variable": str,
    "key": str,
    "key_serde": str,
    "value_serde": str,
    "partitions": int,
    "as": str,
    "columns": list,
    "hide": list,
    "on_error": str,
    "input": str,
    "values": dict,
    "aggregates": dict,
}
_SHAPES: Final = {"window": EntryKind.WINDOW, "session": EntryKind.SESSION, None: EntryKind.PLAIN}
_NEEDED: Final = ("checkpoint", "store")
_KINDS: Final[Mapping[type, str]] = {
    str: "text",
    int: "a whole number",
    list: "a list of texts",
    dict: "a table of texts",
}


def states_of_file(path: Path) -> list[AttachedState]:
    """Return the states that a file names, in its order.

    Raises:
        ConfigurationError: the file can't be read, or something in it has no sense; the text says where.

    """
    try:
        text = file_reads.read(path, _BYTES_MAX).decode()
        document = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} can't be read as TOML: {error}") from error
    others = document.keys() - {"state"}
    if others:
        raise ConfigurationError(f"{path}: {_unknown(min(others), ['state'])}")
    tables = document.get("state")
    if not isinstance(tables, list) or not tables or not all(isinstance(each, dict) for each in tables):
        raise ConfigurationError(f"{path} has no [[state]]: write one for each state, with checkpoint and store")
    if len(tables) > _STATES_MAX:
        raise ConfigurationError(f"{path} has {len(tables)} states, at most {_STATES_MAX} go into one attach")
    return [_state(table, f"{path}, [[state]] {number}") for number, table in enumerate(tables, 1)]


def state_of(given: Mapping[str, Any]) -> AttachedState:
    """Return a state by its options, under the names that they have in the file.

    Raises:
        ConfigurationError: one has a value that there isn't, or they don't go together.

    """
    shape, on_error = given.get("as"), given.get("on_error", OnEntryError.DEAD_LETTER.value)
    if shape not in _SHAPES:
        raise ConfigurationError(f"as {shape!r}: window or session, or leave it out")
    if on_error not in list(OnEntryError):
        raise ConfigurationError(f"on_error {on_error!r}: {' or '.join(OnEntryError)}")
    columns = EntryMapping(
        given.get("key"),
        given.get("values", {}),
        given.get("key_serde"),
        given.get("value_serde", "json"),
        given.get("aggregates", {}),
        given.get("input", ""),
        tuple(given.get("columns", ())),
        tuple(given.get("hide", ())),
        _SHAPES[shape],
        OnEntryError(on_error),
    )
    choice = StateChoice(given.get("operator", 0), given.get("state_store", DEFAULT_STORE), given.get("state_variable"))
    return AttachedState(given["checkpoint"], given["store"], choice, columns, given.get("partitions"))


def _state(table: Mapping[str, Any], place: str) -> AttachedState:
    for key, given in table.items():
        if key not in _KEYS:
            raise ConfigurationError(f"{place}: {_unknown(key, _KEYS)}")
        if not _is_of(given, _KEYS[key]):
            raise ConfigurationError(f"{place}: {key} must be {_KINDS[_KEYS[key]]}, it is {given!r:.100}")
    absent = [key for key in _NEEDED if not table.get(key)]
    if absent:
        raise ConfigurationError(f"{place} lacks {' and '.join(absent)}")
    for key, least in (("operator", 0), ("partitions", 1)):
        if table.get(key, least) < least:
            raise ConfigurationError(f"{place}: {key} must be at least {least}")
    try:
        return state_of(table)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error


def _is_of(given: object, kind: type) -> bool:
    if kind is list:
        return isinstance(given, list) and all(isinstance(each, str) for each in given)
    if kind is dict:
        return isinstance(given, dict) and all(isinstance(each, str) for each in given.values())
    return isinstance(given, kind) and not isinstance(given, bool)


def _unknown(key: str, known: Mapping[str, type] | list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"{key!r} is unknown" + (f": do you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
