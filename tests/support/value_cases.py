"""Stored values for all built-in serdes: ordinary ones, odd ones, and bytes that are none."""

from __future__ import annotations

import decimal
import json
import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from statehouse.serdes import SERDES, Serde, exact_json
from tests.support.json_cases import JSON_CASES

RAW, TEXT, LONG, DOUBLE, JSON, JSON_TEXT = range(1, 7)
"""The forms of dataplane/values/values.go."""
_SERDES: Final[dict[int, Serde]] = {
    RAW: SERDES["bytes"],
    TEXT: SERDES["string"],
    LONG: SERDES["long"],
    DOUBLE: SERDES["double"],
    JSON: SERDES["json"],
    JSON_TEXT: exact_json(SERDES["json"]),
}
_CASE: Final = struct.Struct(">B??II")
_NAMES: Final = ("", "id", "name", "größe", "x" * 127, "a b", '"', "\\", "/", "\0", "\x7f", "\u2028", "\U0001f600")
_CHARS: Final = 'abcdefg 0123"\\/\b\f\n\r\t\0\x1f\x7f\x80äß€\u2028\ud7ff\ue000\ufeff\ufffd\U0001f600\U0010ffff'
# Around the lengths at which a length takes a byte more.
_LENGTHS: Final[tuple[int, ...]] = (*range(110, 130), 16_375, 16_384)
_BLANKS: Final = ("", "", "", "", " ", "\n  ", "\t", "\r\n")
_ODD_BLANKS: Final = ("\f", "\v", "\xa0", "\ufeff", "\0", "/**/", "\u2003")
_INTEGERS: Final = tuple(
    sign * 2**power + step for sign in (1, -1) for power in (0, 31, 52, 53, 54, 62, 63, 64, 100) for step in (-1, 0, 1)
)
_FLOATS: Final = (0.0, -0.0, 0.1, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1e21, 1e22, 1e23, 2.0**53)
_EXPONENTS: Final = ("0", "1", "5", "-7", "+00", "22", "300", "308", "309", "-323", "-324", "-400", "99999", "-9" * 9)
_NO_NUMBERS: Final = (
    *("1.", ".5", "-.5", "1e", "1e+", "1.e5", "+1", "01", "-01", "00", "--1", "-", "1_0", "0x1f", "1f", "1.5.5"),
    *("NaN", "-NaN", "nan", "Infinity", "-Infinity", "inf", "-", "\u0665", "1\uff11", "1e\u0665"),
)
_ESCAPES: Final = (
    *('\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u0000", "\\u00e4", "\\u20AC", "\\uFfFd"),
    *("\\ud83d\\ude00", "\\udbff\\udfff", "\\ud800\\udc00"),
)
_NO_ESCAPES: Final = (
    *("\\x41", "\\'", "\\U0001f600", "\\u12", "\\u 123", "\\u+123", "\\u0x12", "\\uff1", "\\N", "\\0", "\\"),
    *("\\ud800", "\\udc00", "\\udc00\\ud800", "\\ud800\\u0041", "\\ud800\\n", "\\ud83d\\\\ude00", "\\ud800\ude00"),
)
_PIECES: Final = (*'{}[],:"\\ \n-.0159eE+', "true", "null", "false", "NaN", '"a"', '"a":', "\\u", "\\ud800", "\0", "é")


def write_cases(count: int, seed: int) -> Iterator[bytes]:
    """Write cases for TestAgainstReference in dataplane/values, in its format, each with what Python says of it.

    `count`: how many; those of the table of JSON cases come in addition.
    """
    for case in JSON_CASES:
        yield from (_written(form, case.data, is_ordinary=False) for form in _DOCUMENT)
    rng = random.Random(seed)
    for _ in range(count):
        form, data, is_ordinary = _case(rng)
        yield _written(form, data, is_ordinary=is_ordinary)


def _written(form: int, data: bytes, *, is_ordinary: bool) -> bytes:
    try:
        expected, is_shown = _SERDES[form].value(data).SerializeToString(), True
    except ValueError:
        expected, is_shown = b"", False
    return _CASE.pack(form, is_ordinary, is_shown, len(data), len(expected)) + data + expected


def _case(rng: random.Random) -> tuple[int, bytes, bool]:
    """Return a form, a stored value, and whether it is one that Python need not be asked about."""
    (kind,) = rng.choices(tuple(_KINDS), weights=tuple(_KINDS.values()))
    forms, made, is_ordinary = kind
    return rng.choice(forms), made(rng), is_ordinary


def _eight_bytes(rng: random.Random) -> bytes:
    match rng.randrange(3):
        case 0:
            return struct.pack(">q", rng.choice([each for each in _INTEGERS if abs(each) < 2**63]))
        case 1:
            return struct.pack(">d", rng.choice((*_FLOATS, math.nan, math.inf, -math.inf)))
        case _:  # one in a thousand is a NaN
            return rng.randbytes(8)


def _text(rng: random.Random) -> str:
    if rng.random() < 0.1:
        return rng.choice("xé") * (rng.choice(_LENGTHS) // rng.choice((1, 2)))
    return "".join(rng.choices(_CHARS, k=rng.randrange(10)))


def _ordinary(rng: random.Random) -> bytes:
    document = _document(rng, rng.randrange(6))
    how: dict[str, Any] = rng.choice(({}, {"separators": (",", ":")}, {"indent": 2}))
    return json.dumps(document, ensure_ascii=rng.random() < 0.5, **how).encode()


def _document(rng: random.Random, deep: int) -> Any:  # noqa: PLR0911 - any JSON; a table of types
    match rng.randrange(8 if deep else 6):
        case 0:
            return rng.choice((None, True, False))
        case 1:
            return rng.choice(_INTEGERS)
        case 2:
            return rng.randrange(-(10 ** rng.randrange(1, 25)), 10 ** rng.randrange(1, 25))
        case 3:
            return rng.choice((rng.choice(_FLOATS), _any_float(rng), rng.gauss(0, 100), round(rng.random(), 3)))
        case 4 | 5:
            return _text(rng)
        case 6:
            return [_document(rng, deep - 1) for _ in range(rng.randrange(5))]
        case _:
            # Seldom so many names that the program sorts them.
            count = rng.randrange(6) if rng.random() < 0.95 else rng.randrange(60)
            names = (rng.choice((rng.choice(_NAMES), _text(rng), f"n{rng.randrange(1_000)}")) for _ in range(count))
            return {name: _document(rng, deep - 1) for name in names}


def _any_float(rng: random.Random) -> float:
    number: float = struct.unpack(">d", rng.randbytes(8))[0]
    return number if math.isfinite(number) else 0.5


def _odd(rng: random.Random) -> bytes:
    if rng.random() < 0.1:
        return _deep(rng).encode()
    text = _odd_document(rng, rng.randrange(4))
    return f"{_blank(rng)}{text}{_blank(rng)}".encode(errors="surrogatepass")


def _deep(rng: random.Random) -> str:
    """Return a document that is about as deep as may be shown."""
    text, room = rng.choice(("1", "[]", "{}", '"\\u0041"')), rng.randrange(84, 94)
    while room > 0:
        is_list = rng.random() < 0.5
        text = f"[{text}]" if is_list else f'{{"a":{text}}}'
        room -= 2 if is_list else 3
    return text


def _blank(rng: random.Random) -> str:
    return rng.choice(_BLANKS if rng.random() < 0.99 else _ODD_BLANKS)


def _odd_document(rng: random.Random, deep: int) -> str:
    match rng.randrange(5 if deep else 3):
        case 0:
            return _odd_number(rng)
        case 1:
            return _odd_text(rng)
        case 2:
            return rng.choice(("true", "false", "null"))
        case 3:
            items = (f"{_blank(rng)}{_odd_document(rng, deep - 1)}{_blank(rng)}" for _ in range(rng.randrange(4)))
            return f"[{','.join(items)}]"
        case _:
            # Some names come twice.
            fields = (
                f"{_blank(rng)}{_odd_text(rng)}{_blank(rng)}:{_blank(rng)}{_odd_document(rng, deep - 1)}"
                for _ in range(rng.randrange(4))
            )
            return f"{{{','.join(fields)}}}"


def _odd_text(rng: random.Random) -> str:
    pieces = [
        rng.choice(_ESCAPES) if which < 0.5 else rng.choice("abcé \U0001f600") if which < 0.92 else _odd_piece(rng)
        for which in (rng.random() for _ in range(rng.randrange(4)))
    ]
    return f'"{"".join(pieces)}"'


def _odd_piece(rng: random.Random) -> str:
    return rng.choice((rng.choice(_NO_ESCAPES), f"\\u{rng.randrange(0x10000):04x}", rng.choice(_CHARS)))


def _odd_number(rng: random.Random) -> str:
    which = rng.random()
    if which < 0.06:
        return rng.choice(_NO_NUMBERS)
    if which < 0.2:
        return _between_floats(rng)
    digits = rng.choice((1, 1, 2, 15, 16, 17, 20, 300, 639, 640, 641, 5_000)) if which < 0.3 else rng.randrange(1, 19)
    whole = "0" if rng.random() < 0.1 else rng.choice("123456789") + _digits(rng, digits - 1)
    fraction = "." + _digits(rng, rng.choice((1, 2, 17, 30))) if rng.random() < 0.5 else ""
    exponent = rng.choice("eE") + rng.choice(_EXPONENTS) if rng.random() < 0.3 else ""
    return f"{rng.choice(('', '-'))}{whole}{fraction}{exponent}"


def _digits(rng: random.Random, count: int) -> str:
    return "".join(rng.choices("0123456789", k=count))


def _between_floats(rng: random.Random) -> str:
    """Return a number that lies in the middle of two floats, or just beside it, with all its digits."""
    number = rng.choice((_any_float(rng), rng.gauss(0, 1), float(2**53 + 2 * rng.randrange(1_000)), *_FLOATS))
    after = math.nextafter(number, math.inf)
    with decimal.localcontext(decimal.Context(prec=1_200)):
        # Behind the largest float stands what would be the next one.
        following = decimal.Decimal(2**1024) if math.isinf(after) else decimal.Decimal(after)
        middle = f"{(decimal.Decimal(number) + following) / 2:e}"
    mantissa, _, exponent = middle.partition("e")
    beside = rng.choice(("", "0", "1", "00000000000000000001"))
    return f"{mantissa}{beside if '.' in mantissa else ''}e{exponent}"


def _mutated(rng: random.Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        begins = rng.randrange(len(data) + 1)
        ends = min(len(data), begins + rng.choice((0, 1, 1, 2, 8)))
        piece = rng.choice((b"", rng.randbytes(1), rng.choice(_PIECES).encode(), data[begins:ends] * 2))
        data = data[:begins] + piece + data[ends:]
    return data if rng.random() < 0.9 else data[: rng.randrange(len(data) + 1)]


# What is made, for which forms, whether Python need not be asked about it, and how often.
_DOCUMENT: Final = (JSON, JSON_TEXT)
_KINDS: Final[dict[tuple[tuple[int, ...], Callable[[random.Random], bytes], bool], int]] = {
    (_DOCUMENT, _ordinary, True): 35,
    (_DOCUMENT, _odd, False): 30,
    (_DOCUMENT, lambda rng: _mutated(rng, rng.choice((_ordinary, _odd))(rng)), False): 15,
    (_DOCUMENT, lambda rng: "".join(rng.choices(_PIECES, k=rng.randrange(12))).encode(), False): 5,
    ((TEXT,), lambda rng: _text(rng).encode(), True): 4,
    ((TEXT,), lambda rng: _mutated(rng, _text(rng).encode()), False): 3,
    ((RAW,), lambda rng: rng.randbytes(rng.randrange(300)), True): 2,
    ((LONG, DOUBLE), _eight_bytes, True): 4,
    ((LONG, DOUBLE), lambda rng: rng.randbytes(rng.choice((0, 1, 4, 7, 9, 16))), False): 2,
}
