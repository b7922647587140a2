"""The table of JSON cases: what each writer and reader of a JSON store must judge, alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


def _objects(deep: int) -> bytes:
    return b'{"a":' * deep + b"1" + b"}" * deep


def _lists(deep: int) -> bytes:
    return b"[" * deep + b"]" * deep


@dataclass(frozen=True)
class JsonCase:
    """Bytes, and the document that they are. `refused`: they are none, and part of the reason."""

    name: str
    data: bytes
    document: Any = None
    refused: str = ""


JSON_CASES: Final = (
    JsonCase("null", b"null"),
    JsonCase("a number", b"4000", 4000),
    JsonCase("a fraction", b"-12.5", -12.5),
    JsonCase("minus nothing", b"-0", 0),
    JsonCase("the largest double", b"1.7976931348623157e308", 1.7976931348623157e308),
    JsonCase("less than the smallest double", b"1e-400", 0),
    JsonCase("a text", '"Zoë \\"\\u0000\\n"'.encode(), 'Zoë "\0\n'),
    JsonCase("a character by its two halves", b'"\\ud83d\\ude00"', "\U0001f600"),
    JsonCase("blanks around", b' \t\r\n{"a": [true, false, null]} \n', {"a": [True, False, None]}),
    JsonCase("an empty object", b"{}", {}),
    JsonCase("an empty name", b'{"": {"": []}}', {"": {"": []}}),
    JsonCase("a name twice: the last counts", b'{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
    JsonCase("an integer that doubles have", b"9007199254740991", 9007199254740991),
    JsonCase("an integer that doubles lack", b'{"id": 9007199254740993}', {"id": 9007199254740993}),
    JsonCase("an integer of four hundred digits", b"-1" + b"0" * 399, -(10**399)),
    JsonCase("objects, as deep as may be", _objects(30), None),
    JsonCase("lists, as deep as may be", _lists(46), None),
    JsonCase("brackets in a text", b'"' + b"[{" * 200 + b'"', "[{" * 200),
    JsonCase("NaN", b"NaN", refused="no NaN"),
    JsonCase("Infinity", b"Infinity", refused="no Infinity"),
    JsonCase("-Infinity within", b'{"sum": -Infinity}', refused="no -Infinity"),
    JsonCase("in other letters", b"nan", refused="Expecting value"),
    JsonCase("a double too large", b"1e400", refused="too large"),
    JsonCase("a double too large within", b'{"a": [1, -1.5E+999]}', refused="too large"),
    JsonCase("half a character", b'"\\ud800"', refused="surrogate"),
    JsonCase("half a character in a name", b'{"\\uDFFF": 1}', refused="surrogate"),
    JsonCase("half a character as bytes", b'"\xed\xa0\x80"', refused="utf-8"),
    JsonCase("not UTF-8", b'"\xff"', refused="utf-8"),
    JsonCase("UTF-16", '{"a": 1}'.encode("utf-16"), refused="utf-8"),
    JsonCase("UTF-16 without a mark", '{"a": 1}'.encode("utf-16-le"), refused="Expecting"),
    JsonCase("a byte order mark", b"\xef\xbb\xbf{}", refused="Expecting value"),
    JsonCase("nothing", b"", refused="Expecting value"),
    JsonCase("blanks only", b" \n", refused="Expecting value"),
    JsonCase("plain text", b"hello", refused="Expecting value"),
    JsonCase("more behind", b"{} {}", refused="Extra data"),
    JsonCase("cut", b'{"a": [1,', refused="Expecting value"),
    JsonCase("a control character in a text", b'"a\tb"', refused="control character"),
    JsonCase("NUL behind", b"1\x00", refused="Extra data"),
    JsonCase("a comma too many", b"[1,]", refused="E"),
    JsonCase("single quotes", b"{'a': 1}", refused="Expecting"),
    JsonCase("a comment", b"1 // one", refused="Extra data"),
    JsonCase("a zero in front", b"01", refused="Extra data"),
    JsonCase("a plus", b"+1", refused="Expecting value"),
    JsonCase("an underscore", b"1_000", refused="Extra data"),
    JsonCase("digits of another script", "\u0665".encode(), refused="Expecting value"),
    JsonCase("hexadecimal", b"0x10", refused="Extra data"),
    JsonCase("too many digits", b"1" * 5_000, refused="digits"),
    JsonCase("objects too deep", _objects(31), refused="too deep"),
    JsonCase("lists too deep", _lists(47), refused="too deep"),
    JsonCase("far too deep", _lists(100_000), refused="too deep"),
)
