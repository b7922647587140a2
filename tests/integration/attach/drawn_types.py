"""Draws types of Spark with values of them, and reads their JSON back: plain Python, no code of ours."""

from __future__ import annotations

import base64
import json
import random
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

ATOMIC = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary", "date", "timestamp"),
    *("timestamp_ntz", "interval", "decimal"),
)
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DAY = 86_400_000_000
_TEXTS = (
    b"",
    b"a",
    b"\\",
    b"\\xE9",
    b"\\x5CxE9",
    b"\\\\xff",
    b"Zo\xe9",
    b"\xff\xfe",
    b"\xc3\xa9",
    b"\xf0\x9f\x98\x80",
    b'"',
    b"\n\0",
)
_FLOATS = (0.0, -0.0, 1.5, 0.1, 1e300, -5e-324, 123456789.125, float("nan"), float("inf"), float("-inf"), 2.0**63)


@dataclass(frozen=True)
class Kind:
    """A type. `parts`: of a struct its fields, of an array its element, of a map key and value."""

    name: str
    precision: int = 0
    scale: int = 0
    parts: tuple[Kind, ...] = ()


def ddl(kind: Kind) -> str:
    """The type as Spark declares it."""
    parts = [ddl(part) for part in kind.parts]
    if kind.name == "struct":
        return f"struct<{', '.join(f'f{number}: {part}' for number, part in enumerate(parts))}>"
    if parts:
        return f"{kind.name}<{', '.join(parts)}>"
    if kind.name == "decimal":
        return f"decimal({kind.precision},{kind.scale})"
    return "interval day to second" if kind.name == "interval" else kind.name


def drawn_kind(chance: random.Random, depth: int = 2) -> Kind:
    """A type, nested at most so deep."""
    if depth and chance.random() < 0.5:
        name = chance.choice(["struct", "array", "map"])
        count = {"struct": chance.randint(1, 3), "array": 1, "map": 2}[name]
        return Kind(name, parts=tuple(drawn_kind(chance, depth - 1) for _ in range(count)))
    name = chance.choice(ATOMIC)
    if name == "decimal":
        precision = chance.randint(1, 38)
        return Kind(name, precision, chance.randint(0, precision))
    return Kind(name)


def drawn_value(kind: Kind, chance: random.Random, *, may_be_null: bool = True) -> Any:  # noqa: C901, PLR0911, PLR0912 - a table of types
    """A value, in a form that can be compared: times as numbers, texts as bytes, structs and lists as tuples."""
    if may_be_null and chance.random() < 0.15:
        return None
    if kind.name in _BITS:
        most = 1 << (_BITS[kind.name] - 1)
        return chance.choice([0, 1, -1, most - 1, -most, chance.randrange(-most, most)])
    if kind.name == "double":
        return chance.choice([*_FLOATS, struct.unpack("d", chance.randbytes(8))[0]])
    if kind.name == "float":
        return struct.unpack("f", chance.choice([struct.pack("f", 0.1), struct.pack("f", -0.0), chance.randbytes(4)]))[
            0
        ]
    if kind.name == "boolean":
        return chance.random() < 0.5
    if kind.name == "string":
        return b"".join(chance.choice([*_TEXTS, chance.randbytes(2)]) for _ in range(chance.randint(0, 3)))
    if kind.name == "binary":
        return chance.randbytes(chance.randint(0, 5))
    if kind.name == "date":
        return chance.choice([0, -1, 20_000, -800_000, 3_000_000, chance.randrange(-700_000, 2_900_000)])
    if kind.name in {"timestamp", "timestamp_ntz"}:
        return chance.choice([0, -1, 1_761_354_600_123_456, 2**62, chance.randrange(-(2**58), 2**58)])
    if kind.name == "interval":
        return chance.choice([0, -1, 999_999, _DAY, -_DAY - 1, chance.randrange(-(2**50), 2**50)])
    if kind.name == "decimal":
        most = 10**kind.precision
        return chance.choice([0, 1, -1, most - 1, 1 - most, chance.randrange(-most + 1, most)])  # unscaled
    if kind.name == "map":
        pairs = {}
        for _ in range(chance.randint(0, 3)):
            key = drawn_value(kind.parts[0], chance, may_be_null=False)
            pairs[repr(key) if key == key else "nan"] = (key, drawn_value(kind.parts[1], chance))  # noqa: PLR0124 - NaN
        return tuple(pairs.values())
    if kind.name == "array":
        return tuple(drawn_value(kind.parts[0], chance) for _ in range(chance.randint(0, 3)))
    return tuple(drawn_value(part, chance) for part in kind.parts)


def arrow_of(kind: Kind, values: Sequence[Any]) -> pa.Array:  # noqa: PLR0911 - a table of types
    """The values as Arrow has them; strings need not be UTF-8."""
    if kind.name == "struct":
        columns = [arrow_of(part, [None if v is None else v[n] for v in values]) for n, part in enumerate(kind.parts)]
        names = [f"f{number}" for number in range(len(columns))]
        return pa.StructArray.from_arrays(columns, names, mask=pa.array([v is None for v in values]))
    if kind.name in {"array", "map"}:
        lengths = [0, *(0 if v is None else len(v) for v in values)]
        ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
        offsets = pa.array(
            [None if v is None else start for v, start in zip(values, ends[:-1], strict=True)] + ends[-1:], pa.int32()
        )
        flat = [each for v in values if v is not None for each in v]
        if kind.name == "array":
            return pa.ListArray.from_arrays(offsets, arrow_of(kind.parts[0], flat))
        keys, items = (arrow_of(kind.parts[n], [pair[n] for pair in flat]) for n in (0, 1))
        return pa.MapArray.from_arrays(offsets, keys, items)
    if kind.name == "string":
        return pa.array(values, pa.binary()).view(pa.string())
    if kind.name == "decimal":
        made = [None if v is None else Decimal((v < 0, tuple(map(int, str(abs(v)))), -kind.scale)) for v in values]
        return pa.array(made, pa.decimal128(kind.precision, kind.scale))
    plain = {
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
    }
    if kind.name in plain:
        return pa.array(values, plain[kind.name])
    if kind.name == "date":
        return pa.array(values, pa.int32()).view(pa.date32())
    to = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"), "interval": pa.duration("us")}
    return pa.array(values, pa.int64()).view(to[kind.name])


def read_json(kind: Kind, text: str) -> Any:
    """The value that a document has."""
    return _read(kind, json.loads(text, parse_int=_Number, parse_float=_Number))


class _Number(str):
    """A number as it is written."""

    __slots__ = ()


def _read(kind: Kind, value: Any) -> Any:  # noqa: C901, PLR0911, PLR0912 - a table of types
    if value is None:
        return None
    if kind.name in _BITS:
        assert isinstance(value, _Number)
        return int(value)
    if kind.name in {"float", "double"}:
        assert isinstance(value, _Number) or value in {"NaN", "Infinity", "-Infinity"}
        return struct.unpack("f", struct.pack("f", float(value)))[0] if kind.name == "float" else float(value)
    if kind.name == "boolean":
        assert isinstance(value, bool)
        return value
    if kind.name == "string":
        return read_text(value)
    if kind.name == "binary":
        return base64.b64decode(value, validate=True)
    if kind.name == "decimal":
        assert not isinstance(value, _Number)
        assert re.fullmatch(r"-?\d+" + (rf"\.\d{{{kind.scale}}}" if kind.scale else ""), value), value
        return int(value.replace(".", ""))
    if kind.name == "date":
        return _days(value)
    if kind.name in {"timestamp", "timestamp_ntz"}:
        assert value.endswith("Z") == (kind.name == "timestamp")
        return _micros(value.removesuffix("Z"))
    if kind.name == "interval":
        return _interval(value)
    if kind.name == "array":
        return tuple(_read(kind.parts[0], each) for each in value)
    if kind.name == "map":
        if isinstance(value, list):
            return tuple((_read(kind.parts[0], e["key"]), _read(kind.parts[1], e["value"])) for e in value)
        return tuple((_read_key(kind.parts[0], key), _read(kind.parts[1], each)) for key, each in value.items())
    assert list(value) == [f"f{number}" for number in range(len(kind.parts))]
    return tuple(_read(part, each) for part, each in zip(kind.parts, value.values(), strict=True))


def _read_key(kind: Kind, text: str) -> Any:
    """The key of a map, which JSON has as text."""
    if kind.name == "boolean":
        return {"true": True, "false": False}[text]
    return _read(kind, _Number(text) if kind.name in {*_BITS, "float", "double"} else text)


def read_text(text: str) -> bytes:
    """The bytes of a text, with its escapes."""
    parts = re.split(r"\\x([0-9A-Fa-f]{2})", text)
    return b"".join(bytes.fromhex(part) if place % 2 else part.encode() for place, part in enumerate(parts))


def _days(text: str) -> int:
    """Days since 1970 of a date of the proleptic Gregorian calendar (Howard Hinnant, chrono-compatible algorithms)."""
    year, month, day = map(int, re.fullmatch(r"([+-]?\d+)-(\d\d)-(\d\d)", text).groups())  # type: ignore[union-attr] # fails if it is none
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def _micros(text: str) -> int:
    date, time = text.split("T")
    hours, minutes, seconds, micros = map(int, re.fullmatch(r"(\d\d):(\d\d):(\d\d)\.(\d{6})", time).groups())  # type: ignore[union-attr] # as above
    return _days(date) * _DAY + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros


def _interval(text: str) -> int:
    found = re.fullmatch(r"INTERVAL '(-?)(\d+) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?' DAY TO SECOND", text)
    assert found, text
    sign, days, hours, minutes, seconds, fraction = found.groups()
    whole = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
    return (-1 if sign else 1) * (whole * 1_000_000 + int((fraction or "").ljust(6, "0")))


def same(kind: Kind, one: Any, other: Any) -> bool:
    """Whether two values are the same: of numbers their bits, but that all NaN are one."""
    if one is None or other is None:
        return one is other
    if kind.name in {"float", "double"}:
        return struct.pack("d", one) == struct.pack("d", other) or (one != one and other != other)  # noqa: PLR0124 - NaN
    if kind.name == "struct":
        return all(same(part, a, b) for part, a, b in zip(kind.parts, one, other, strict=True))
    if kind.name == "array":
        return len(one) == len(other) and all(same(kind.parts[0], a, b) for a, b in zip(one, other, strict=True))
    if kind.name == "map":
        pair = Kind("struct", parts=kind.parts)
        return len(one) == len(other) and all(same(pair, a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
