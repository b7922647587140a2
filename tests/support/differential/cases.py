"""Made-up reads. Each has a seed of its own, so that one that once went wrong can be asked again. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from statehouse.contract.topology import SESSION, VERSIONED, WINDOW
from tests.support.differential.stores import BEGAN_MS, MINUTE_MS, MadeStore, made_text

Key = str | bytes
GET, BATCH, AS_OF, COUNT = "get", "batch", "as of", "count"
SCAN, SCAN_WINDOWS, SCAN_SESSIONS = "scan", "scan windows", "scan sessions"
WINDOWS, SESSIONS, HISTORY = "windows", "sessions", "history"
SCANS: Final = frozenset({SCAN, SCAN_WINDOWS, SCAN_SESSIONS})
OF_A_KEY: Final = frozenset({WINDOWS, SESSIONS, HISTORY})
_TIMED: Final = OF_A_KEY | {SCAN_WINDOWS, SCAN_SESSIONS}
# The reads of a kind of store; now and then one asks for what its store doesn't have.
_OF_KIND: Final[Mapping[str, tuple[str, ...]]] = {
    WINDOW: (WINDOWS, SCAN_WINDOWS, COUNT),
    SESSION: (SESSIONS, SCAN_SESSIONS, COUNT),
    VERSIONED: (GET, AS_OF, HISTORY, SCAN),
}
_KINDS: Final = (GET, GET, GET, GET, GET, BATCH, BATCH, SCAN, SCAN, COUNT)
_ANY_KIND: Final = (AS_OF, *sorted(_TIMED))
_ODD_TEXTS: Final = (
    *(
        "",
        "0",
        "-0",
        "007",
        "+5",
        " 5",
        "5_0",
        "\u0665",
        "1e3",
        "nan",
        "inf",
        "-inf",
        "NaN",
        "null",
        "[1]",
        "0x1f",
        "ab ",
        "..",
    ),
    *("9007199254740993", "9223372036854775808", "1e400", "1.0", "-1"),
)
_BOUNDS: Final[tuple[Mapping[str, int], ...]] = (
    {},
    {},
    {},
    {"active_only": 1},
    {"max_lag": 0},
    {"max_lag": 2**63 - 1, "max_staleness_ms": 600_000},
    {"active_only": 1, "max_staleness_ms": 600_000},
    {"max_processor_age_ms": 1_000},
    {"max_input_backlog": 0},
)
COMPRESSIONS: Final = (grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate)


@dataclass(frozen=True)
class Read:
    """One read: of a key, of several in a batch, of what a key has, or of what a range has.

    `is_whole`: all pages of it. `is_exact`: gRPC gives documents as text.
    """

    seed: int
    kind: str
    store: str
    keys: tuple[Key, ...] = ()
    raw: bool = False
    is_exact: bool = True
    bounds: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, Key] = field(default_factory=dict)
    times: Mapping[str, int] = field(default_factory=dict)
    reverse: bool = False
    page_size: int = 10
    is_whole: bool = False
    compression: grpc.Compression = grpc.Compression.NoCompression
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def has_bytes(self) -> bool:
        """Whether its keys are bytes; all are alike."""
        return any(isinstance(key, bytes) for key in (*self.keys, *self.ends.values()))


def made_read(seed: int, stores: Mapping[str, MadeStore]) -> Read:
    """Return the read of a seed."""
    rng = random.Random(seed)
    store = stores[rng.choice(sorted(stores))]
    kind = rng.choice(_ANY_KIND if rng.random() < 0.05 else _OF_KIND.get(store.kind, _KINDS))
    is_bytes = rng.random() < 0.3
    parts: dict[str, Any] = {}
    if kind not in SCANS | {COUNT}:
        parts["keys"] = tuple(
            _key(rng, store, is_bytes=is_bytes) for _ in range(rng.randint(1, 6) if kind == BATCH else 1)
        )
    if kind in SCANS:
        names = rng.choice(((), (), ("prefix",), ("from",), ("to",), ("from", "to")))
        parts["ends"] = {name: _key(rng, store, is_bytes=is_bytes) for name in names}
    if kind in SCANS | OF_A_KEY:
        size = rng.choice((1, 2, 7, 50, 1_000))
        parts |= {"reverse": rng.random() < 0.4, "page_size": size, "is_whole": size > 2 and rng.random() < 0.3}
    if kind in _TIMED and rng.random() < 0.5:
        parts["times"] = {name: _time(rng) for name in rng.choice((("from_ms",), ("to_ms",), ("from_ms", "to_ms")))}
    if kind == AS_OF:
        parts["times"] = {"as_of_ms": _time(rng)}
    return Read(
        seed,
        kind,
        "nowhere" if rng.random() < 0.02 else store.name,
        raw=kind != COUNT and rng.random() < 0.25,
        is_exact=rng.random() < 0.8,
        bounds=rng.choice(_BOUNDS),
        compression=rng.choice(COMPRESSIONS),
        metadata=_metadata(rng),
        **parts,
    )


def _time(rng: random.Random) -> int:
    return rng.choice(
        (0, 2**63 - 1, BEGAN_MS + rng.randint(-2, 8) * MINUTE_MS + rng.randint(-1, 1), BEGAN_MS + rng.randint(0, 70))
    )


def _key(rng: random.Random, store: MadeStore, *, is_bytes: bool) -> Key:
    """Return a key that is there, one that isn't, or none at all."""
    there = rng.choice(store.keys)
    if is_bytes:
        return rng.choice((there, there, there, there[:-1], rng.randbytes(rng.choice((0, 3, 8)))))
    if rng.random() < 0.7 and (text := store.key_text(there)) is not None:
        return text
    return rng.choice(_ODD_TEXTS) if rng.random() < 0.5 else made_text(rng)


def _metadata(rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Return headers that no door has a use for."""
    every = (
        ("x-request-id", "1"),
        ("accept-language", "de, en;q=0.5"),
        ("cookie", "a=b; c=d"),
        ("x-empty", ""),
        ("x-twice", "1"),
        ("x-twice", "2"),
    )
    return tuple(rng.sample(every, rng.randint(0, 3)))
