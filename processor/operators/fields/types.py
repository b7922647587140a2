"""The types that a field of a record may be required to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from statehouse.errors import ConfigurationError

_DIGITS_MAX: Final = 38


class FieldType(Enum):
    """The required type of a field: its type in Spark, and its name in messages."""

    INTEGER = ("bigint", "an integer of 64 bits")
    NUMBER = ("double", "a finite number")
    TEXT = ("string", "a string")
    BOOLEAN = ("boolean", "true or false")
    TIMESTAMP = ("timestamp", "an ISO 8601 time, as in 2026-01-31T09:02:00Z")
    """Without a zone it is UTC; microseconds are kept, further digits ignored."""
    DATE = ("date", "a date, as in 2026-01-31")

    def __init__(self, spark_type: str, words: str) -> None:
        self.spark_type = spark_type
        self.words = words

    @staticmethod
    def decimal(precision: int, scale: int) -> Decimal:
        """Return the type of numbers with at most so many digits, and so many of them after the point; exact.

        Raises:
            ConfigurationError: Spark has no such decimal.

        """
        return Decimal(precision, scale)

    @staticmethod
    def nested(fields: Mapping[str, Field], optional: Mapping[str, Field] | None = None) -> Nested:
        """Return the type of objects with these fields, which become a struct; further ones are ignored."""
        return Nested(fields, optional or {})

    @staticmethod
    def list_of(element: Field) -> ListOf:
        """Return the type of lists whose elements all have this type."""
        return ListOf(element)


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal: see `FieldType.decimal`."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        """Refuse what Spark lacks."""
        if not 0 <= self.scale <= self.precision <= _DIGITS_MAX or self.precision == 0:
            raise ConfigurationError(
                f"FieldType.decimal({self.precision}, {self.scale}): it can have 1 to {_DIGITS_MAX} digits, and no "
                "more of them after the point"
            )

    @property
    def spark_type(self) -> str:
        """Its type in Spark."""
        return f"decimal({self.precision},{self.scale})"

    @property
    def words(self) -> str:
        """Its name in messages."""
        return f"a number of {self.precision} digits at most, {self.scale} of them after the point"


@dataclass(frozen=True, slots=True)
class Nested:
    """An object: see `FieldType.nested`."""

    fields: Mapping[str, Field]
    optional: Mapping[str, Field] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Its name in messages."""
        return f"an object with {', '.join(f'{name!r}: {kind.words}' for name, kind in self.fields.items()) or 'any'}"


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list: see `FieldType.list_of`."""

    element: Field

    @property
    def words(self) -> str:
        """Its name in messages."""
        return f"a list, each element of it {self.element.words}"


Field = FieldType | Decimal | Nested | ListOf
"""What `parse_json` takes as the type of a field."""


def check_types(fields: Mapping[str, object]) -> None:
    """Return if the fields have types.

    Raises:
        ConfigurationError: one hasn't; the text says which there are.

    """
    for name, kind in fields.items():
        if isinstance(kind, Nested):
            check_types({**kind.fields, **kind.optional})
        elif isinstance(kind, ListOf):
            check_types({name: kind.element})
        elif not isinstance(kind, FieldType | Decimal):
            known = ", ".join([*map(str, FieldType), "FieldType.decimal(...), .nested(...) or .list_of(...)"])
            raise ConfigurationError(f"field {name!r} has the type {kind!r}: give it one of {known}")
