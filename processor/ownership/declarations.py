"""The stores that a controller gets from an application's code or a static topology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from typing import Final

from statehouse.contract.topology import KEY_VALUE, SESSION, STORE_KINDS, VERSIONED, WINDOW, built_on
from statehouse.errors import ConfigurationError
from statehouse.keys.columns import KeyColumn
from statehouse.serdes import SERDES

_PLUGIN = re.compile(r"[a-z][a-z0-9-]{0,63}")
# The plug-ins that come with the project, in addition to the built-in serdes: both are what a slip may have meant.
_SERDES: Final = (*SERDES, "avro", "protobuf", "json-schema")
# "windows" and "versions" count as typing errors, "count-min-sketch" doesn't.
_SLIP_SIMILARITY: Final = 0.8
# The time options of each built-in kind, and of custom kinds with its layout. Other custom kinds may have all of them.
_TIMING: Final = {
    KEY_VALUE: (),
    WINDOW: ("retention_ms", "window_size_ms", "retain_duplicates"),
    SESSION: ("retention_ms",),
    VERSIONED: ("retention_ms",),
}


@dataclass(frozen=True, slots=True)
class StoreDeclaration:
    """A store as declared by the application's code or a static topology; the controller chooses its sub-topology.

    The fields are those of `StoreSpec`. A kind outside STORE_KINDS is a custom one, and the nodes must have a plug-in
    for it. `partition_count` 0: not known yet, set when the topics are known. `committed`: the processor says when a
    batch is whole. Creation checks all rules, so an application's code and a static topology obey the same ones.

    Raises:
        ConfigurationError: the declaration breaks a rule; the text says which.

    """

    name: str
    query: str
    partition_count: int
    changelog_topic: str
    kind: str = KEY_VALUE
    key_serde: str = "string"
    value_serde: str = "json"
    in_memory: bool = False
    retention_ms: int = 0
    window_size_ms: int = 0
    retain_duplicates: bool = False
    is_global: bool = False
    ephemeral: bool = False
    layout: str = ""
    committed: bool = False
    foreign: bool = False
    key_columns: tuple[KeyColumn, ...] = ()

    @property
    def built_on(self) -> str:
        """The built-in kind that the store is of, or builds on."""
        return built_on(self.kind, self.layout)

    def __post_init__(self) -> None:
        for what, name in (("key", self.key_serde), ("value", self.value_serde)):
            wrong = _fault_of_serde(name)
            if wrong:
                raise ConfigurationError(f"store {self.name}: {what} serde {name!r} {wrong}")
        fault = next(chain(self._faults_of_kind(), self._faults_of_timing(), self._faults_of_place()), None)
        if fault is not None:
            raise ConfigurationError(f"store {self.name}: {fault}")

    def _faults_of_kind(self) -> Iterator[str]:
        if _PLUGIN.fullmatch(self.kind) is None:
            yield (
                f"kind {self.kind!r} must be one of {', '.join(STORE_KINDS)}, or the name of a plug-in of the nodes: "
                "lower-case letters, digits and '-'"
            )
        elif self.kind not in STORE_KINDS:
            for meant in get_close_matches(self.kind, STORE_KINDS, 1, _SLIP_SIMILARITY):
                yield f"kind {self.kind!r} is none of the built-in ones: write {meant!r}, or name the plug-in otherwise"
        if self.layout and self.kind in STORE_KINDS:
            yield f"layout goes with a custom kind, not with {self.kind}: leave it out"
        elif self.layout not in {"", WINDOW, SESSION}:
            yield f"layout {self.layout!r} must be {WINDOW} or {SESSION}, or left out for plain keys"

    def _faults_of_timing(self) -> Iterator[str]:
        if min(self.retention_ms, self.window_size_ms) < 0:
            yield "retention_ms and window_size_ms can't be negative"
        known = self.kind if self.kind in STORE_KINDS else self.layout
        allowed = _TIMING.get(known, _TIMING[WINDOW])
        extra = [name for name in _TIMING[WINDOW] if getattr(self, name) and name not in allowed]
        if extra:
            yield f"a {self.kind} store has no {', no '.join(extra)}: leave it out, or say which kind of store is meant"
        if self.built_on != KEY_VALUE and self.retention_ms <= 0:
            yield f"a {self.kind} store needs a retention above 0 (retention_ms)"
        if self.built_on == WINDOW and not 0 < self.window_size_ms <= self.retention_ms:
            yield (
                f"a window must last above 0 ms and at most the retention (window_size_ms is {self.window_size_ms}, "
                f"retention_ms {self.retention_ms})"
            )

    def _faults_of_place(self) -> Iterator[str]:
        if self.is_global and self.kind != KEY_VALUE:
            yield f"a global store is a key-value store, not a {self.kind} one"
        if self.is_global and self.ephemeral:
            yield (
                "a global store is read from its topic's start, an ephemeral one from its end: declare it as one of "
                "the two"
            )
        if self.ephemeral and self.kind == VERSIONED:
            yield (
                "the history of a versioned store would begin anew with every restart: it can't be ephemeral "
                "(logging=False)"
            )


def _fault_of_serde(name: str) -> str:
    """Return why there can be no such serde; empty if there can. Which plug-ins the nodes have isn't known here."""
    if _PLUGIN.fullmatch(name) is None:
        return (
            f"must be one of {', '.join(SERDES)}, or the name of a plug-in of the nodes: lower-case letters, digits "
            "and '-'"
        )
    if name not in _SERDES:
        for meant in get_close_matches(name, _SERDES, 1, _SLIP_SIMILARITY):
            return f"is none of ours: write {meant!r}, or name the plug-in otherwise"
    return ""
