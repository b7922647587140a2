"""The scenes: every built-in kind, format and expiry, and every state that a node can be in when it is asked."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.placement import StorePlacement
from statehouse.contract.topology import KEY_VALUE, SESSION, VERSIONED, WINDOW, Role, StoreSpec
from statehouse.keys.composite import SessionKey, WindowKey
from tests.conformance.scene import Entry, Held, Scene

T0: Final = 1_700_000_000_000
MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
PARTITIONS: Final = 3
ODD_KEYS: Final = (b"", b"\0", b"a", b"a\0", b"a\0b", b"ab", b"a\xff", b"\xff", b"\xff\xff", "ä€😀".encode())
"""Zero bytes, prefixes of each other, the highest bytes, and letters of two to four bytes."""
WORDS: Final = tuple(f"key-{number:02}".encode() for number in range(24))


def _long(number: int) -> bytes:
    return struct.pack(">q", number)


def _double(number: float) -> bytes:
    return struct.pack(">d", number)


LONGS: Final = (-(2**63), -1, 0, 1, 255, 256, 2**63 - 1)
DOUBLES: Final = (0.0, -0.0, 0.1, -1.5e300, 5e-324, float("inf"), float("-inf"), float("nan"), 2.0**53)
DOCUMENTS: Final = tuple(
    text.encode()
    for text in (
        "null",
        "true",
        "0",
        "-0.0",
        "9007199254740993",
        "1e400",
        '"ä\\u0000\\ud83d\\ude00"',
        "[]",
        '{"b": 1, "a": [1, 2.5, null], "a": 2}',
        '{"": {"nested": [[[]]]}}',
        "  [1] ",
        "{",
        "",
        "NaN",
        "[" * 200 + "]" * 200,
    )
)
"""Documents, and what looks like one and is none."""
SERDES: Final[Mapping[str, Sequence[bytes]]] = MappingProxyType(
    {
        "string": (b"", b"plain", "ä€😀\0".encode(), b"\xff\xfe"),
        "long": (*map(_long, LONGS), b"", b"\0" * 7, b"\0" * 9),
        "double": (*map(_double, DOUBLES), b"\0" * 7),
        "json": DOCUMENTS,
        "bytes": (b"", b"\0\xff"),
        "avro": (b"anything",),
    }
)
"""Bytes of values by serde; the last one no node knows."""


def _spec(name: str, number: int, kind: str = KEY_VALUE, **fields: object) -> StoreSpec:
    spec = StoreSpec(name, f"{name}-changelog", PARTITIONS, number, kind, value_serde="string")
    return replace(spec, **fields)  # type: ignore[arg-type] - names and types are StoreSpec's


def _placed(entries: Sequence[tuple[bytes, Entry]], spec: StoreSpec) -> dict[int, tuple[Entry, ...]]:
    """Place records by the keys that are named before them."""
    return {
        partition: tuple(entry for key, entry in entries if partition_for(key, spec.partition_count) == partition)
        for partition in range(spec.partition_count)
    }


def _held(spec: StoreSpec, entries: Sequence[tuple[bytes, Entry]]) -> tuple[Held, ...]:
    placed = _placed(entries, spec)
    return tuple(Held(spec.name, partition, placed[partition]) for partition in placed)


def _plain(keys: Sequence[bytes], values: Sequence[bytes]) -> list[tuple[bytes, Entry]]:
    """Return a record for each key, overwritten and deleted ones among them, some without a time."""
    entries = []
    for number, key in enumerate(keys):
        at = -1 if number % 7 == 3 else T0 + number * 1_000
        entries.append((key, (key, b"old", T0 - 1)))
        entries.append((key, (key, values[number % len(values)], at)))
        if number % 5 == 4:
            entries.append((key, (key, None, at + 1)))
    return entries


def _formats() -> Scene:
    specs, held = [], []
    for number, (serde, values) in enumerate(SERDES.items()):
        spec = _spec(f"values-{serde}", number, value_serde=serde)
        specs.append(spec)
        held += _held(spec, _plain([b"v%02d" % place for place in range(2 * len(values))], values))
    for serde, keys in (("long", [*map(_long, LONGS), b"bad"]), ("json", DOCUMENTS), ("bytes", ODD_KEYS)):
        spec = _spec(f"keys-{serde}", len(specs), key_serde=serde)
        specs.append(spec)
        held += _held(spec, _plain(keys, (b"v",)))
    return Scene(tuple(specs), tuple(held))


def _odd_keys() -> Scene:
    spec = _spec("odd", 0)
    # In front of the others: what is written together has one time, to which all others are relative.
    timeless = [(key, (key, b"timeless", -1)) for key in (b"t%d" % number for number in range(6))]
    return Scene((spec,), _held(spec, [*timeless, *_plain([*ODD_KEYS, *WORDS], (b"one", b"x" * 900))]))


def _documents() -> Scene:
    """Documents that take many times as much in an answer, so that what is shown is too much for a page."""
    spec = _spec("documents", 0, value_serde="json")
    lists = [b"[" + b",".join([b"1"] * count) + b"]" for count in (1, 2, 20, 60, 100, 250, 700)]
    keys = [b"%s of a document with a long name" % word for word in WORDS]
    return Scene((spec,), _held(spec, _plain(keys, lists)))


def _windows() -> Scene:
    plain = _spec("windows", 0, WINDOW, retention_ms=HOUR, window_size_ms=5 * MINUTE)
    several = _spec("several", 1, WINDOW, retention_ms=HOUR, window_size_ms=MINUTE, retain_duplicates=True)
    entries: dict[str, list[tuple[bytes, Entry]]] = {"windows": [], "several": []}
    for place, key in enumerate([*ODD_KEYS, *WORDS[:6]]):
        for step in range(0, 150, 10):  # more than twice the retention: the first ones expire
            start = T0 + step * MINUTE
            value = b"%d/%d" % (place, step)
            entries["windows"].append((key, (WindowKey(key, start).to_bytes(), value, start + 1)))
            for sequence in range(step % 3):
                record = (WindowKey(key, start, sequence).to_bytes(), value, start + sequence)
                entries["several"].append((key, record))
        entries["windows"].append((key, (WindowKey(key, T0 + 140 * MINUTE).to_bytes(), None, T0)))
        entries["windows"].append((key, (WindowKey(key, T0).to_bytes(), b"late", T0)))
    entries["windows"] += [(b"a", (b"short", b"v", T0)), (b"a", (b"a" + b"\xff" * 12, b"negative", T0))]
    return Scene(
        (plain, several),
        (*_held(plain, entries["windows"]), *_held(several, entries["several"])),
    )


def _sessions() -> Scene:
    spec = _spec("sessions", 0, SESSION, retention_ms=HOUR)
    entries: list[tuple[bytes, Entry]] = []
    for place, key in enumerate([*ODD_KEYS, *WORDS[:6]]):
        for step in range(0, 150, 15):
            start = T0 + step * MINUTE
            session = SessionKey(key, start, start + place * MINUTE)
            entries.append((key, (session.to_bytes(), b"%d" % step, session.end_ms)))
        merged = SessionKey(key, T0 + 135 * MINUTE, T0 + (135 + place) * MINUTE)
        entries.append((key, (merged.to_bytes(), None, merged.end_ms)))
    entries.append((b"a", (b"short", b"v", T0)))
    return Scene((spec,), _held(spec, entries))


def _versions() -> Scene:
    spec = _spec("versions", 0, VERSIONED, retention_ms=HOUR)
    entries: list[tuple[bytes, Entry]] = []
    for place, key in enumerate([*ODD_KEYS, *WORDS[:6]]):
        for step in range(0, 150, 20):
            value = None if step == 100 and place % 2 else b"%d" % step
            entries.append((key, (key, value, T0 + step * MINUTE)))
        entries.append((key, (key, b"out of order", T0 + 90 * MINUTE)))
        entries.append((key, (key, b"too late", T0)))
    return Scene((spec,), _held(spec, entries))


def _places() -> Scene:
    """Global stores, in place and scattered, an ephemeral one, and stores whose records are misplaced or unread."""
    whole = _spec("whole", 0, is_global=True)
    scattered = _spec("scattered", 1, is_global=True)
    ephemeral = _spec("ephemeral", 2, ephemeral=True)
    misplaced = _spec("misplaced", 3)
    unread = _spec("unread", 4, foreign=True)
    words = _plain(WORDS[:9], (b"value",))
    moved = _plain(WORDS[:9], (b"moved",))
    return Scene(
        (whole, scattered, ephemeral, misplaced, unread),
        (
            *_held(whole, words),
            *(
                replace(each, entries=tuple(entry for _, entry in moved[each.partition :: PARTITIONS]))
                for each in _held(scattered, ())
            ),
            *(replace(each, since_ms=T0) for each in _held(ephemeral, words)),
            *_held(misplaced, words),
            *_held(unread, words),
        ),
        placements={
            "misplaced": StorePlacement({1: 4}),
            "unread": StorePlacement({}, unknown=(2,)),
        },
    )


def _states() -> Scene:
    """Replicas in every state and role, up to date and behind, confirmed and unknown; and stores that aren't built."""
    specs = {name: _spec(name, number) for number, name in enumerate(("roles", "states", "ends", "changed"))}
    empty = _spec("empty", 4, committed=True)
    first = _spec("first", 5, committed=True)
    built = _spec("built", 6, committed=True)
    alien = _spec("alien", 7, kind="of a plug-in", partition_count=1)
    words = {name: _held(spec, _plain(WORDS[:9], (b"value",))) for name, spec in specs.items()}
    roles = (
        {},
        {"role": Role.STANDBY, "asked_ms_ago": 7 * MINUTE},
        {"role": Role.WARM_UP, "asked_ms_ago": HOUR},
    )
    states = (
        {"state": TaskState.RESTORING, "behind": 5},
        {"state": TaskState.SUSPENDED},
        {"state": TaskState.ERROR, "error": "corrupt-store: it is broken"},
    )
    ends = (
        {"behind": 40, "asked_ms_ago": 20 * MINUTE},
        {"asked_ms_ago": None},
        {"behind": 3, "asked_ms_ago": HOUR, "role": Role.STANDBY},
    )
    return Scene(
        (*specs.values(), empty, first, built, replace(alien, kind=KEY_VALUE, value_serde="a plug-in's")),
        (
            *(replace(each, **role) for each, role in zip(words["roles"], roles, strict=True)),
            *(replace(each, **state) for each, state in zip(words["states"], states, strict=True)),
            *(replace(each, **end) for each, end in zip(words["ends"], ends, strict=True)),
            replace(words["changed"][0], topic_change="it has 4 partitions"),
            words["changed"][1],  # partition 2 is the other node's
            *_held(empty, ()),
            *_held(first, ()),
            *_held(built, ()),
            Held("alien", 0, ((b"key-00", b"value", T0),)),
        ),
        reports={"roles": (0, 0), "ends": (HOUR, 1_000), "states": (MINUTE * 5, None)},
        proven={"first": {0: 3, 1: 0}, "built": {}},
    )


def _unconfirmed() -> Scene:
    spec = _spec("store", 0)
    everywhere = _spec("everywhere", 1, is_global=True)
    words = _plain(WORDS[:9], (b"value",))
    held = _held(spec, words)
    return Scene(
        (spec, everywhere),
        (held[0], replace(held[1], role=Role.STANDBY), held[2], *_held(everywhere, words)),
        is_confirmed=False,
    )


SCENES: Final[Mapping[str, Scene]] = MappingProxyType(
    {
        "formats": _formats(),
        "odd-keys": _odd_keys(),
        "documents": _documents(),
        "windows": _windows(),
        "sessions": _sessions(),
        "versions": _versions(),
        "places": _places(),
        "states": _states(),
        "unconfirmed": _unconfirmed(),
    }
)
