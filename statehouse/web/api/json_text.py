"""JSON bodies, with stored documents in them byte for byte: fields keep their order, and numbers their form. Pure."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, Final

from statehouse.serdes.json_documents import named, read_json

_SEPARATORS: Final = (",", ":")


@dataclass(frozen=True, slots=True)
class Document:
    """A JSON document as it is stored. Make it with `document`, which checks it."""

    text: bytes


def document(data: bytes) -> Document:
    """Return stored bytes as a JSON document.

    Raises:
        ValueError: they are none.

    """
    read_json(data)
    return Document(data)


def encode(value: Any) -> bytes:  # noqa: ANN401 - any JSON, with bytes and documents in it
    """Return a body. Bytes become {"base64": ...}, to differ from text; NaN and infinities become text."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def in_base64(data: bytes) -> str:
    """Return bytes as text, in the alphabet for URLs."""
    return base64.urlsafe_b64encode(data).decode()


def _write(value: Any, parts: list[bytes]) -> None:  # noqa: ANN401 - as above
    match value:
        case Document():
            parts.append(value.text)
        case bytes():
            parts.append(b'{"base64":"%s"}' % in_base64(value).encode())
        case dict():
            _write_all(b"{", [(_scalar(str(name)) + b":", each) for name, each in value.items()], b"}", parts)
        case list() | tuple():
            _write_all(b"[", [(b"", each) for each in value], b"]", parts)
        case _:
            parts.append(_scalar(value))


def _write_all(begin: bytes, items: list[tuple[bytes, Any]], end: bytes, parts: list[bytes]) -> None:
    parts.append(begin)
    for number, (name, each) in enumerate(items):
        parts.append(b"," + name if number else name)
        _write(each, parts)
    parts.append(end)


def _scalar(value: Any) -> bytes:  # noqa: ANN401 - text, a number, true, false or null
    if isinstance(value, float):
        value = named(value)
    # Text may hold half of a surrogate pair, which UTF-8 has not: escaped, it is still JSON.
    escaped = isinstance(value, str) and not value.isascii() and _has_surrogates(value)
    return json.dumps(value, ensure_ascii=escaped, separators=_SEPARATORS).encode()


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= each <= "\udfff" for each in text)
