"""The serdes that every process has. Pure."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from google.protobuf import struct_pb2

from statehouse.errors import LookupFailure, Reason
from statehouse.serdes.json_documents import MESSAGES_DEEP, TOO_DEEP, named, read_json
from statehouse.v1 import types_pb2

PLUGIN_GROUP = "statehouse.serdes"
"""The group of entry points by which packages add serdes."""

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]

Shown = TypeVar("Shown")

# Tags of Value's fields, and of Key's.
_LONG = struct.Struct(">q")
_DOUBLE = struct.Struct(">d")
_NAN = bytes.fromhex("7ff8000000000000")
# Beyond this a 64-bit float may be another integer than was written, and has no fraction to show whether it was one.
_EXACT_INTEGERS_TO = 2**53
# Python reads more than these as numbers or as hex: blanks, underscores, digits of other scripts. Such a text is no key
# that a serde has written, and a guess would prove that a key is not there which nobody meant.
_INTEGER: Final = re.compile("0|-?[1-9][0-9]{0,18}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,3})?")
_NAMED_NUMBERS: Final = frozenset({"nan", "inf", "-inf"})
_HEX: Final = re.compile("(?:[0-9a-fA-F]{2})*")


@runtime_checkable
class Serde(Protocol):
    """Turns bytes into text and typed values, and text into bytes.

    `parse` raises ValueError for text that is not of the type; `text`, `value` and `wire` raise ValueError for bytes
    that are not of the type. They run on the event loop, so they do no I/O. If one of the latter three must fetch
    something first, it raises FetchNeeded, and is asked again after the fetch. It raises SerdeUnavailable while the
    fetch can't be done. `parse` fetches nothing: routers call it, too.
    """

    def parse(self, text: str) -> bytes:
        """Return the serialized form of text."""

    def text(self, data: bytes) -> str:
        """Return the bytes as text that `parse` accepts."""

    def value(self, data: bytes) -> types_pb2.Value:
        """Return the bytes as a typed value."""


class FetchNeeded(Exception):
    """A serde needs something from elsewhere, a schema for example, before it can decode these bytes.

    Attributes:
        need: names what is needed. Fetches of equal needs are done once.
        fetch: fetches it. It may block for a bounded time, so it runs in a thread. It keeps what it got, or why it got
            nothing, and raises nothing: the serde says so when it is asked again.

    """

    def __init__(self, need: Hashable, fetch: Callable[[], None]) -> None:
        super().__init__(f"{need!r} has to be fetched first")
        self.need, self.fetch = need, fetch


class SerdeUnavailable(LookupFailure):
    """A serde can't decode for now, though the bytes may be sound."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.SERDE_UNAVAILABLE, message)


class StringSerde(Serde):
    """UTF-8 text."""

    def parse(self, text: str) -> bytes:
        """Encode."""
        return text.encode()

    def text(self, data: bytes) -> str:
        """Decode."""
        return data.decode()

    def value(self, data: bytes) -> types_pb2.Value:
        """Decode."""
        return types_pb2.Value(text=data.decode())


class LongSerde(Serde):
    """64-bit signed integer, big-endian (Java's Long)."""

    def parse(self, text: str) -> bytes:
        """Pack a decimal integer, as `text` writes it: without blanks, a plus, or zeros in front."""
        if not _INTEGER.fullmatch(text):
            raise ValueError("it is not written as a 64-bit integer, like 5 or -5")
        try:
            return _LONG.pack(int(text))
        except struct.error as error:
            raise ValueError(f"{text} does not fit into 64 bits") from error

    def text(self, data: bytes) -> str:
        """Show in decimal."""
        return str(_unpack(_LONG, data))

    def value(self, data: bytes) -> types_pb2.Value:
        """Unpack."""
        return types_pb2.Value(long=_unpack(_LONG, data))


class DoubleSerde(Serde):
    """64-bit IEEE float, big-endian (Java's Double)."""

    def parse(self, text: str) -> bytes:
        """Pack a decimal number, if it is one that `text` shows: in its form or another, as 1, 1.0 and 1e0.

        A number that is rounded on the way is refused: 2^53 + 1, 1e400. So is what only Python reads as a number.
        """
        if text in _NAMED_NUMBERS:
            return _NAN if text == "nan" else _DOUBLE.pack(float(text))
        if not _NUMBER.fullmatch(text):
            raise ValueError("it is not written as a number, like 0.5, -1e-05, nan or inf")
        number = float(text)
        if math.isinf(number) or Decimal(text) != Decimal(repr(number)):
            raise ValueError(f"it is no 64-bit float: the nearest one is {number!r}")
        return _DOUBLE.pack(number)

    def text(self, data: bytes) -> str:
        """Show the shortest decimal that reads back equal. Only Java's form of NaN, of many, has such a text."""
        number = _unpack(_DOUBLE, data)
        if math.isnan(number) and data != _NAN:
            raise ValueError("a NaN in another form than Java's, which no text stands for")
        return repr(number)

    def value(self, data: bytes) -> types_pb2.Value:
        """Unpack."""
        return types_pb2.Value(double=_unpack(_DOUBLE, data))


class BytesSerde(Serde):
    """Any bytes; shown and typed as hexadecimal."""

    def parse(self, text: str) -> bytes:
        """Read hexadecimal digits, two a byte, without blanks."""
        if not _HEX.fullmatch(text):
            raise ValueError("it is not bytes in hex: two digits for each, without blanks")
        return bytes.fromhex(text)

    def text(self, data: bytes) -> str:
        """Show hexadecimal digits."""
        return data.hex()

    def value(self, data: bytes) -> types_pb2.Value:
        """Return the bytes."""
        return types_pb2.Value(raw=data)


class JsonSerde(Serde):
    """A JSON document in UTF-8. Typed reads give numbers as 64-bit floats (protobuf's Value), exact ones its text."""

    def parse(self, text: str) -> bytes:
        """Check that it is JSON and keep it as it was typed: keys are compared by their bytes."""
        data = text.encode()
        read_json(data)
        return data

    def text(self, data: bytes) -> str:
        """Decode."""
        return data.decode()

    def value(self, data: bytes) -> types_pb2.Value:
        """Parse; an integer beyond 2^53 becomes text."""
        return types_pb2.Value(json=json_value(read_json(data)))

    def exact(self, data: bytes) -> types_pb2.Value:
        """Return the document as it is written. What `value` refuses, this refuses, too."""
        read_json(data)
        return types_pb2.Value(json_text=data.decode())


class DocumentSerde(Serde):
    """Base of serdes whose values are JSON documents to their readers: a plug-in adds `document`."""

    def document(self, data: bytes) -> JsonValue:
        """Return the bytes as a JSON document.

        Raises:
            ValueError: the bytes are not of the type.
            FetchNeeded, SerdeUnavailable: as in `Serde`.

        """
        raise NotImplementedError

    def parse(self, text: str) -> bytes:  # noqa: ARG002 - as every serde has it
        """Refuse: only the key's writer knows which bytes a document becomes."""
        raise ValueError(
            "keys of this serde have no text form, because a document does not say which schema its writer used: "
            "serialize the key as its writer does, and send raw bytes"
        )

    def text(self, data: bytes) -> str:
        """Show the document as compact JSON, with sorted names."""
        return self._shown(data, _compact)

    def value(self, data: bytes) -> types_pb2.Value:
        """Return the document; an integer beyond 2^53 becomes text."""
        return types_pb2.Value(json=self._shown(data, json_value))

    def exact(self, data: bytes) -> types_pb2.Value:
        """Return the document as JSON text. What `value` refuses, this refuses, too."""

        def text_of(document: JsonValue) -> str:
            json_value(document)
            return _compact(document)

        return types_pb2.Value(json_text=self._shown(data, text_of))

    def _shown(self, data: bytes, show: Callable[[JsonValue], Shown]) -> Shown:
        try:
            return show(named_floats(self.document(data)))
        except RecursionError as error:
            raise ValueError(TOO_DEEP) from error


class MissingSerde(Serde):
    """Stands for a serde that this process has no plug-in for: it can route by raw keys, and pass raw values on."""

    def __init__(self, name: str, reason: str = "") -> None:
        self._message = reason or (
            f"no package installed here has the serde {name!r}: install one with an entry point {name!r} in the group "
            f"{PLUGIN_GROUP!r}"
        )

    def parse(self, text: str) -> bytes:  # noqa: ARG002 - as every serde has it
        """Refuse: a guess would look in the wrong partition."""
        raise ValueError(f"{self._message}; or serialize the key as its writer does, and send raw bytes")

    def text(self, data: bytes) -> str:  # noqa: ARG002 - as above
        """Refuse."""
        raise self._unavailable()

    def value(self, data: bytes) -> types_pb2.Value:  # noqa: ARG002 - as above
        """Refuse."""
        raise self._unavailable()

    def _unavailable(self) -> SerdeUnavailable:
        return SerdeUnavailable(f"{self._message}; raw reads work")


class JsonTextSerde(Serde):
    """Shows documents as JSON text, in place of protobuf's Value, which has 64-bit floats only. See `exact_json`."""

    def __init__(self, serde: JsonSerde | DocumentSerde) -> None:
        self._serde = serde

    def parse(self, text: str) -> bytes:
        """As the serde does."""
        return self._serde.parse(text)

    def text(self, data: bytes) -> str:
        """As the serde does."""
        return self._serde.text(data)

    def value(self, data: bytes) -> types_pb2.Value:
        """Return the document as text."""
        return self._serde.exact(data)


def exact_json(serde: Serde) -> Serde:
    """Return what shows a serde's values without rounding a number: as `Value.json_text`, if they are documents."""
    return JsonTextSerde(serde) if isinstance(serde, JsonSerde | DocumentSerde) else serde


def named_floats(document: JsonValue) -> JsonValue:
    """Return a document with the floats that JSON doesn't have as text: NaN, Infinity and -Infinity."""
    match document:
        case float():
            return named(document)
        case list():
            return [named_floats(item) for item in document]
        case dict():
            return {name: named_floats(item) for name, item in document.items()}
        case _:
            return document


def _compact(document: JsonValue) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False)


def _unpack(form: struct.Struct, data: bytes) -> Any:  # noqa: ANN401 - int or float, by the form
    try:
        return form.unpack(data)[0]
    except struct.error as error:
        raise ValueError(f"{len(data)} bytes where {form.size} are expected") from error


def json_value(document: Any, room: int = MESSAGES_DEEP) -> struct_pb2.Value:  # noqa: ANN401, PLR0911 - as json.loads gives it; a table of types
    """Build protobuf's Value; several times faster than json_format, which checks again what json.loads has checked.

    An integer beyond 2^53 becomes text, as protobuf's own JSON has it: the Value has 64-bit floats only.

    `room`: how deep the messages of it may be.

    Raises:
        ValueError: it is not JSON, or nested too deep.

    """
    if room < 0:
        raise ValueError(TOO_DEEP)
    match document:
        case None:
            return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
        case bool():
            return struct_pb2.Value(bool_value=document)
        case int() if abs(document) > _EXACT_INTEGERS_TO:
            return struct_pb2.Value(string_value=str(document))
        case int() | float():
            if not math.isfinite(document):
                raise ValueError("a number that JSON does not have")
            return struct_pb2.Value(number_value=document)
        case str():
            return struct_pb2.Value(string_value=document)
        case list():
            values = [json_value(item, room - 2) for item in document]
            return struct_pb2.Value(list_value=struct_pb2.ListValue(values=values))
        case dict():
            fields = {name: json_value(item, room - 3) for name, item in document.items()}
            return struct_pb2.Value(struct_value=struct_pb2.Struct(fields=fields))
        case _:
            raise ValueError(f"{type(document).__name__} is not JSON")


def from_json_value(document: struct_pb2.Value) -> JsonValue:
    """Return a JSON document as a Python value.

    The wire has 64-bit floats only. A float without a fraction becomes an integer, because it almost always was one.
    """
    match document.WhichOneof("kind"):
        case "number_value":
            number = document.number_value
            return int(number) if number.is_integer() and abs(number) <= _EXACT_INTEGERS_TO else number
        case "string_value":
            return document.string_value
        case "bool_value":
            return document.bool_value
        case "list_value":
            return [from_json_value(item) for item in document.list_value.values]
        case "struct_value":
            # A map on the wire has no order. Sorted, equal documents print alike.
            return {name: from_json_value(item) for name, item in sorted(document.struct_value.fields.items())}
        case _:
            return None


SERDES: Mapping[str, Serde] = MappingProxyType(
    {
        "string": StringSerde(),
        "long": LongSerde(),
        "double": DoubleSerde(),
        "bytes": BytesSerde(),
        "json": JsonSerde(),
    }
)


def shown_key(serde: Serde, data: bytes, *, raw: bool) -> types_pb2.Key:
    """Return a key as text; as raw bytes if asked for, or if it does not decode."""
    if not raw:
        with suppress(ValueError):
            return types_pb2.Key(text=serde.text(data))
    return types_pb2.Key(raw=data)


def shown_value(serde: Serde, data: bytes, *, raw: bool) -> types_pb2.Value:
    """Return one of several values, raw if it does not decode: it must not fail the others."""
    if not raw:
        with suppress(ValueError):
            return serde.value(data)
    return types_pb2.Value(raw=data)


def known_serde(name: str) -> Serde:
    """Return a built-in serde, or a MissingSerde in its place."""
    return SERDES.get(name) or MissingSerde(name)
