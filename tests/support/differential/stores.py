"""The stores that cases read: all serdes of keys and values, with what is hard to show in them."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import SERDES
from tests.support.json_cases import JSON_CASES

BEGAN_MS: Final = 1_699_999_980_000
MINUTE_MS: Final = 60_000
ENTRIES: Final = 60
_DOUBLES: Final = (0.0, -0.0, 1.5, 1e16, 1e22, -1e300, 5e-324, 0.1, 100.0, float("nan"), float("inf"), -float("inf"))
_LONGS: Final = (0, -1, 1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63))
_TEXTS: Final = (
    "",
    " ",
    "a",
    "A/b",
    "Zoë",
    "\0",
    "a\nb",
    "é",
    "\U0001f600",
    '{"a":1}',
    "NaN",
    "..",
    "%41",
    "a+b?c#d&e=f",
)


@dataclass(frozen=True)
class MadeStore:
    """A store, and its entries by the keys' bytes: the value and its time."""

    name: str
    key_serde: str
    value_serde: str
    entries: Mapping[bytes, tuple[bytes, int]]
    """By the keys of records: with a window or session behind the key."""
    kind: str = KEY_VALUE

    @property
    def keys(self) -> list[bytes]:
        """The keys themselves, each once."""
        return sorted(set(map(self.placed_by, self.entries)))

    def placed_by(self, record_key: bytes) -> bytes:
        """Return the key of a record's key, which gives its partition."""
        match self.kind:
            case "window":
                return WindowKey.from_bytes(record_key).key
            case "session":
                return SessionKey.from_bytes(record_key).key
            case _:
                return record_key

    @property
    def options(self) -> dict[str, Any]:
        """How it is declared."""
        times = {"retention_ms": 100 * MINUTE_MS} if self.kind != KEY_VALUE else {}
        size = {"window_size_ms": MINUTE_MS} if self.kind == WINDOW else {}
        engine = {"in_memory": self.value_serde in {"json", "string"}}
        return {
            **engine,
            "key_serde": self.key_serde,
            "value_serde": self.value_serde,
            "kind": self.kind,
            **times,
            **size,
        }

    def key_text(self, key: bytes) -> str | None:
        """Return a key as its serde writes it; None if it has no text."""
        try:
            return SERDES[self.key_serde].text(key)
        except ValueError:
            return None

    def parsed(self, key: str | bytes) -> bytes | None:
        """Return a key's bytes; None if it is none of the store's serde."""
        if isinstance(key, bytes):
            return key
        try:
            return SERDES[self.key_serde].parse(key)
        except ValueError:
            return None


def made_stores(seed: int) -> dict[str, MadeStore]:
    """Return the stores: each serde of keys with two of values, of values with two of keys, and one of each kind."""
    serdes, rng = tuple(SERDES), random.Random(seed)
    stores = [
        _made(f"{key}-{value}", key, value, rng)
        for place, key in enumerate(serdes)
        for value in (serdes[(place + 4) % 5], serdes[(place + 2) % 5])
    ]
    stores += [_of_kind(WINDOW, "long", "json", rng), _of_kind(SESSION, "string", "double", rng)]
    stores.append(replace(_made("versioned", "string", "json", rng), kind=VERSIONED))
    return {store.name: store for store in stores}


def _made(name: str, key_serde: str, value_serde: str, rng: random.Random) -> MadeStore:
    keys, values = (dict.fromkeys(_bytes(serde, rng)) for serde in (key_serde, value_serde))
    every = list(values)
    entries = {key: (every[number % len(every)], BEGAN_MS + number) for number, key in enumerate(keys)}
    return MadeStore(name, key_serde, value_serde, MappingProxyType(entries))


def _of_kind(kind: str, key_serde: str, value_serde: str, rng: random.Random) -> MadeStore:
    """Return a store with three windows or sessions of each key."""
    plain, entries = _made(kind, key_serde, value_serde, rng), {}
    for number, (key, (value, at_ms)) in enumerate(plain.entries.items()):
        for start_ms in (BEGAN_MS + (number % 5 + each) * MINUTE_MS for each in range(3)):
            suffixed = WindowKey(key, start_ms) if kind == WINDOW else SessionKey(key, start_ms, start_ms + number)
            entries[suffixed.to_bytes()] = value, at_ms
    return replace(plain, entries=MappingProxyType(entries), kind=kind)


def _bytes(serde: str, rng: random.Random) -> Iterator[bytes]:
    """Make bytes of a serde, and some that are not."""
    for number in range(ENTRIES):
        match serde:
            case "long":
                yield struct.pack(">q", _LONGS[number] if number < len(_LONGS) else rng.randint(-(10**6), 10**6))
            case "double":
                yield struct.pack(">d", _DOUBLES[number] if number < len(_DOUBLES) else rng.uniform(-1e9, 1e9))
            case "string":
                text = _TEXTS[number] if number < len(_TEXTS) else made_text(rng)
                yield text.encode()
            case "json":
                data = JSON_CASES[number].data if number < len(JSON_CASES) else _document(rng)
                yield data if 0 < len(data) < 2_000 else b"{}"
            case _:
                yield rng.randbytes(rng.randint(0, 12))
    yield b"\xff" * rng.randint(1, 9)
    yield b"short"


def made_text(rng: random.Random) -> str:
    """Return text of any letters."""
    return "".join(rng.choice("abzÄé \t/%&?#+.;=~'\"\\☃\U0001f600\x7f\0") for _ in range(rng.randint(1, 8)))


def _document(rng: random.Random) -> bytes:
    numbers: list[Any] = [rng.randint(-(2**53), 2**53), rng.uniform(-1e6, 1e6), 1e100, None, True, made_text(rng)]
    document = {made_text(rng): rng.choice(numbers), "z": [rng.choice(numbers)], "a": {"n": rng.choice(numbers)}}
    return json.dumps(document, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1))).encode()
