"""Records with one field at an extreme."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from statehouse.errors.checked import (
    CAPACITY_MAX,
    COUNT_MAX,
    HOLDERS_MAX,
    PARTITIONS_MAX,
    PARTITIONS_OF_ALL_MAX,
    SUB_TOPOLOGIES_MAX,
)

M = TypeVar("M", bound=Message)

_TEXTS: Final = (
    *("", "\0", "a\nb", "../..", "..", "/etc", "x" * 255, "x" * 256, "é" * 127, "é" * 5_000, "x" * 70_000),
    *(
        "[::1]",
        "::1%" + "a" * 250,
        "::1%" + "é" * 20,
        "fe80::1%eth0",
        "unix",
        "dns",
        "%s%n%%",
        "{0}",
        "\u202e",
        "\u0301",
    ),
    *("10.0.0.1", "a.b", ".".join(["x" * 61] * 4), "\U0001f3e0" * 63, " ", "0_0", "999999999_999999999"),
)
_BOUNDS: Final = (CAPACITY_MAX, HOLDERS_MAX, 65_535, PARTITIONS_MAX, PARTITIONS_OF_ALL_MAX, SUB_TOPOLOGIES_MAX, 2**20)
_NUMBERS: Final = (0, 1, *(bound + more for bound in _BOUNDS for more in (0, 1)), 2**31 - 1, 2**31)
_EXTREMES: Final[Mapping[int, tuple[Any, ...]]] = MappingProxyType(
    {
        FieldDescriptor.TYPE_UINT32: (*_NUMBERS, 10**9, 2**32 - 1),
        FieldDescriptor.TYPE_UINT64: (*_NUMBERS, COUNT_MAX - 1, COUNT_MAX, COUNT_MAX + 1, 2**63, 2**64 - 1),
        FieldDescriptor.TYPE_INT64: (-(2**63), -1, 0, 1, 2**31, COUNT_MAX, COUNT_MAX + 1, 2**63 - 1),
        FieldDescriptor.TYPE_SINT32: (-(2**31), -1, 0, 2**31 - 1),
        FieldDescriptor.TYPE_ENUM: (0, 5, 6, 2**31 - 1),
        FieldDescriptor.TYPE_BOOL: (False, True),
        FieldDescriptor.TYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e308),
        FieldDescriptor.TYPE_STRING: _TEXTS,
        FieldDescriptor.TYPE_BYTES: (b"", b"\xff" * 10_000),
    }
)
_ENTRIES: Final = (("store/counts", 2**64 - 1), ("store/other", 1), ("", 0), ("x" * 10_000, 1))


def poisoned(message: M) -> Iterator[tuple[str, M]]:
    """Yield copies of a message, each with one field of it, or of a message in it, at an extreme; and what that is."""
    for field in message.DESCRIPTOR.fields:
        for what, change in _changes(message, field):
            copy = type(message)()
            copy.CopyFrom(message)
            change(copy)
            yield f"{field.name}{what}", copy


def _changes(message: Message, field: Any) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """Yield what sets a field of a copy to an extreme."""
    name = field.name
    if field.message_type is None:
        for value in _EXTREMES[field.type]:
            yield f" = {value!r:.40}", partial(_added if field.is_repeated else _set, name=name, value=value)
    elif field.message_type.GetOptions().map_entry:
        for key, number in _ENTRIES:
            yield f"[{key[:20]}] = {number}", partial(_put, name=name, key=key, value=number)
    elif field.is_repeated:
        for number, part in enumerate(getattr(message, name)):
            for what, changed in poisoned(part):
                yield f".{what}", partial(_nth_replaced, name=name, number=number, by=changed)
    elif message.HasField(name):
        for what, changed in poisoned(getattr(message, name)):
            yield f".{what}", partial(_replaced, name=name, by=changed)


def _set(copy: Any, name: str, value: Any) -> None:
    setattr(copy, name, value)


def _added(copy: Any, name: str, value: Any) -> None:
    getattr(copy, name).append(value)


def _put(copy: Any, name: str, key: str, value: int) -> None:
    getattr(copy, name)[key] = value


def _nth_replaced(copy: Any, name: str, number: int, by: Message) -> None:
    getattr(copy, name)[number].CopyFrom(by)


def _replaced(copy: Any, name: str, by: Message) -> None:
    getattr(copy, name).CopyFrom(by)
