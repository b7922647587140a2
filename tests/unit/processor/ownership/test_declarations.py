"""What a store's declaration may say: the rules that an application's code and a static topology share."""

from __future__ import annotations

from typing import Any

import pytest

from processor.ownership.declarations import StoreDeclaration
from statehouse.contract.topology import SESSION, VERSIONED, WINDOW
from statehouse.errors import ConfigurationError

TIMES = {"retention_ms": 5, "window_size_ms": 5}


def declared(**fields: Any) -> StoreDeclaration:
    return StoreDeclaration("s", "query", 1, "topic", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": VERSIONED, "retention_ms": 5, "ephemeral": True}, "it can't be ephemeral"),
        ({"retention_ms": 5}, "a key-value store has no retention_ms"),
        ({"retain_duplicates": True}, "a key-value store has no retain_duplicates"),
        (TIMES, "a key-value store has no retention_ms, no window_size_ms"),
        ({"is_global": True, "retention_ms": 5}, "a key-value store has no retention_ms"),
        ({"kind": SESSION, **TIMES}, "a session store has no window_size_ms"),
        ({"kind": VERSIONED, "retention_ms": 5, "retain_duplicates": True}, "no retain_duplicates"),
        ({"kind": SESSION}, "needs a retention"),
        ({"kind": WINDOW, "retention_ms": 5, "window_size_ms": 6}, "at most the retention"),
        ({"kind": "word-sketch", "retention_ms": -1}, "can't be negative"),
        ({"kind": "a heap"}, "must be one of"),
    ],
)
def test_what_does_not_fit_a_kind_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"store s: .*{message}"):
        declared(**fields)


@pytest.mark.parametrize(
    ("slip", "meant"),
    [
        ("windows", "window"),
        ("windowed", "window"),
        ("sesion", "session"),
        ("versions", "versioned"),
        ("keyvalue", "key-value"),
        ("key-values", "key-value"),
    ],
)
def test_a_slip_of_a_built_in_kind_is_no_custom_one(slip: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"write '{meant}'"):
        declared(kind=slip, **TIMES)


@pytest.mark.parametrize("kind", ["word-sketch", "count-min-sketch", "top-sessions", "geo", "bloom-filter"])
def test_a_custom_kind_may_be_told_any_time(kind: str) -> None:
    assert declared(kind=kind, **TIMES, retain_duplicates=True).kind == kind
