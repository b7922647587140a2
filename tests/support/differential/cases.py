"""Made-up reads. Each has a seed of its own, so that one that once went wrong can be asked again. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import grpc

from tests.support.differential.stores import MadeStore, made_text

Key = str | bytes
_ODD_TEXTS: Final = (
    "",
    "0",
    "-0",
    "007",
    "+5",
    " 5",
    "5_0",
    "٥",
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
    """What is asked: a key, several in a batch, or a page of a range."""

    seed: int
    kind: str
    store: str
    keys: tuple[Key, ...] = ()
    raw: bool = False
    bounds: Mapping[str, int] = field(default_factory=dict)
    first: Key | None = None
    last: Key | None = None
    prefix: Key | None = None
    reverse: bool = False
    page_size: int = 10
    compression: grpc.Compression = grpc.Compression.NoCompression
    metadata: tuple[tuple[str, str], ...] = ()

    @property
    def has_bytes(self) -> bool:
        """Whether its keys are bytes; all are alike."""
        return any(isinstance(key, bytes) for key in (*self.keys, self.first, self.last, self.prefix))


def made_read(seed: int, stores: Mapping[str, MadeStore]) -> Read:
    """Return the read of a seed."""
    rng = random.Random(seed)
    store = stores[rng.choice(sorted(stores))]
    name = "nowhere" if rng.random() < 0.02 else store.name
    is_bytes = rng.random() < 0.3

    def key() -> Key:
        return _key(rng, store, is_bytes=is_bytes)

    common = {
        "seed": seed,
        "store": name,
        "raw": rng.random() < 0.25,
        "bounds": rng.choice(_BOUNDS),
        "compression": rng.choice(COMPRESSIONS),
        "metadata": _metadata(rng),
    }
    kind = rng.choices(("get", "batch", "page"), (6, 2, 2))[0]
    if kind == "get":
        return Read(kind=kind, keys=(key(),), **common)
    if kind == "batch":
        return Read(kind=kind, keys=tuple(key() for _ in range(rng.randint(1, 6))), **common)
    prefix = key() if rng.random() < 0.2 else None
    first, last = (key() if prefix is None and rng.random() < 0.4 else None for _ in range(2))
    return Read(
        kind=kind,
        first=first,
        last=last,
        prefix=prefix,
        reverse=rng.random() < 0.4,
        page_size=rng.choice((1, 2, 7, 50, 1_000)),
        **common,
    )


def _key(rng: random.Random, store: MadeStore, *, is_bytes: bool) -> Key:
    """Return a key that is there, one that isn't, or none at all."""
    if is_bytes:
        there = rng.choice(sorted(store.entries))
        return rng.choice((there, there, there, there[:-1], rng.randbytes(rng.choice((0, 3, 8)))))
    if rng.random() < 0.7:
        text = store.key_text(rng.choice(sorted(store.entries)))
        if text is not None:
            return text
    return rng.choice(_ODD_TEXTS) if rng.random() < 0.5 else made_text(rng)


def _metadata(rng: random.Random) -> tuple[tuple[str, str], ...]:
    """Return headers that no door has a use for."""
    every = (
        ("x-request-id", "1"),
        ("accept-language", "de, en;q=0.5"),
        ("cookie", "a=b; c=d"),
        ("x-empty", ""),
        ("x-empty", "2"),
    )
    return tuple(rng.sample(every, rng.randint(0, 3)))
