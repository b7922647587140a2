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


def shape_of(name: str | None) -> EntryKind:
    """Return the shape that `--as` names.

    Raises:
        ConfigurationError: there is no such.

    """
    known = {"window": EntryKind.WINDOW, "session": EntryKind.SESSION, None: EntryKind.PLAIN}
    if name not in known:
        raise ConfigurationError(f"as {name!r}: window or session, or leave it out")
    return known[name]


def on_error_of(name: str) -> OnEntryError:
    """Return what `--on-error` names.

    Raises:
        ConfigurationError: there is no such.

    """
    try:
        return OnEntryError(name)
    except ValueError:
        raise ConfigurationError(f"on_error {name!r}: {' or '.join(each.value for each in OnEntryError)}") from None


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
        columns = EntryMapping(
            table.get("key"),
            table.get("values", {}),
            table.get("key_serde"),
            table.get("value_serde", "json"),
            table.get("aggregates", {}),
            table.get("input", ""),
            tuple(table.get("columns", ())),
            tuple(table.get("hide", ())),
            shape_of(table.get("as")),
            on_error_of(table.get("on_error", OnEntryError.DEAD_LETTER.value)),
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from error
    choice = StateChoice(table.get("operator", 0), table.get("state_store", DEFAULT_STORE), table.get("state_variable"))
    return AttachedState(table["checkpoint"], table["store"], choice, columns, table.get("partitions"))


def _is_of(given: object, kind: type) -> bool:
    if kind is list:
        return isinstance(given, list) and all(isinstance(each, str) for each in given)
    if kind is dict:
        return isinstance(given, dict) and all(isinstance(each, str) for each in given.values())
    return isinstance(given, kind) and not isinstance(given, bool)


def _unknown(key: str, known: Mapping[str, type] | list[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"{key!r} is unknown" + (f": do you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}")
