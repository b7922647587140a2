"""How tables show what reads return. Times are ISO 8601; programs get epoch milliseconds from JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from statehouse.cli import output
from statehouse.cli.output import Column
from statehouse.client import (
    Answer,
    Entry,
    KeyedSession,
    KeyedWindow,
    Session,
    Stamp,
    StoreValue,
    VersionedRecord,
    Window,
)
from statehouse.client.answers import AnyKey
from statehouse.contract.moments import MomentToken
from statehouse.errors import LookupFailure

Valued = Entry | Window | Session | KeyedWindow | KeyedSession


class HasValue(Protocol):
    """What a store holds under a key, or held."""

    @property
    def value(self) -> StoreValue:
        """The value."""


Listed_contra = TypeVar("Listed_contra", bound=HasValue, contravariant=True)


@dataclass(frozen=True)  # slots and a generic class don't go together in this Python
class Listed(Generic[Listed_contra]):
    """What a list is of: what one is called, its columns, and its name for `-o name`."""

    one: str
    columns: Sequence[Column[Listed_contra]]
    name: Callable[[Listed_contra], object]

    def counted(self, count: int) -> str:
        """Return how many there are, for people."""
        plural = f"{self.one[:-1]}ies" if self.one.endswith("y") else f"{self.one}s"
        return f"{count} {self.one if count == 1 else plural}"


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """What a lookup of several came to: an answer, or a failure."""

    key: AnyKey
    found: bool | None
    value: StoreValue
    timestamp_ms: int | None
    failure: LookupFailure | None
    moment: MomentToken | None = None

    @classmethod
    def of(cls, key: AnyKey, answer: Answer | LookupFailure) -> KeyOutcome:
        """Return what the lookup of a key came to."""
        if isinstance(answer, LookupFailure):
            return cls(key, None, None, None, answer)
        return cls(key, answer.found, answer.value, answer.timestamp_ms, None, answer.moment)


def print_answer(answer: Answer, *, is_wide: bool) -> None:
    """Print a lookup's answer; wide: with all that is known of the copy that gave it."""
    facts = [("found", answer.found), ("value", _shown(answer.value) if answer.found else "-")]
    if not is_wide:
        output.print_facts([*facts, ("freshness", _freshness(answer))])
        return
    output.print_facts(
        [
            *facts,
            ("partition", answer.partition),
            ("epoch", answer.epoch),
            ("host", str(answer.host)),
            ("role", answer.role),
            ("position", answer.position),
            ("lag", answer.lag),
            ("staleness", _milliseconds(answer.staleness_ms)),
            ("processor age", _milliseconds(answer.processor_age_ms)),
            ("input backlog", answer.input_backlog),
            *([] if answer.timestamp_ms is None else [("timestamp", output.wall_clock(answer.timestamp_ms))]),
            *([] if answer.since_ms is None else [("updates since", output.wall_clock(answer.since_ms))]),
        ]
    )


def print_result(facts: Sequence[tuple[str, object]], stamps: Sequence[Stamp], *, is_wide: bool) -> None:
    """Print what was asked of several partitions; wide: with each copy that took part."""
    if not is_wide:
        output.print_facts([*facts, *(("freshness", _freshness(stamp)) for stamp in _worst(stamps))])
        return
    output.print_facts(facts)
    output.print_columns(STAMPS, stamps)


def _worst(stamps: Sequence[Stamp]) -> Sequence[Stamp]:
    """Return the one copy that counts: of several, the one that may lack most."""
    return [max(stamps, key=_lack)] if stamps else []


def _lack(stamp: Stamp) -> tuple[float, float]:
    unknown = float("inf")
    return (
        unknown if stamp.lag is None else stamp.lag,
        unknown if stamp.staleness_ms is None else stamp.staleness_ms,
    )


def _freshness(stamp: Answer | Stamp) -> str:
    """Return how old what a copy said may be, in the words of the options that bound it."""
    facts = [f"lag {output.cell(stamp.lag)}", f"staleness {output.cell(_milliseconds(stamp.staleness_ms))}"]
    if stamp.processor_age_ms is not None:
        facts.append(f"processor age {stamp.processor_age_ms} ms")
    if stamp.input_backlog is not None:
        facts.append(f"input backlog {stamp.input_backlog}")
    if stamp.since_ms is not None:
        facts.append(f"updates since {output.wall_clock(stamp.since_ms)}")
    return f"{', '.join(facts)}; {stamp.role} {stamp.host.instance_id}"


def _shown(value: StoreValue) -> object:
    return "null" if value is None else value


def _time(epoch_ms: int | None) -> str | None:
    return None if epoch_ms is None else output.wall_clock(epoch_ms)


def _milliseconds(number: int | None) -> str | None:
    return None if number is None else f"{number} ms"


_KEY: Final = Column[Entry | KeyedWindow | KeyedSession]("KEY", lambda each: each.key)
_START: Final = Column[Window | Session | KeyedWindow | KeyedSession]("START", lambda each: _time(each.start_ms))
_END: Final = Column[Window | Session | KeyedWindow | KeyedSession]("END", lambda each: _time(each.end_ms))
_VALUE: Final = Column[Valued | VersionedRecord]("VALUE", lambda each: _shown(each.value))
_TIMESTAMP: Final = Column[Valued]("TIMESTAMP", lambda each: _time(each.timestamp_ms))
_SPANS: Final = (_START, _END, _VALUE, _TIMESTAMP)

ENTRIES: Final = Listed[Entry]("entry", (_KEY, _VALUE, _TIMESTAMP), lambda each: each.key)
WINDOWS: Final = Listed[Window]("window", _SPANS, lambda each: each.start_ms)
SESSIONS: Final = Listed[Session]("session", _SPANS, lambda each: each.start_ms)
KEYED_WINDOWS: Final = Listed[KeyedWindow]("window", (_KEY, *_SPANS), lambda each: each.key)
KEYED_SESSIONS: Final = Listed[KeyedSession]("session", (_KEY, *_SPANS), lambda each: each.key)
VERSIONS: Final = Listed[VersionedRecord](
    "version",
    (
        Column("VALID FROM", lambda each: _time(each.valid_from_ms)),
        Column("VALID TO", lambda each: "-" if each.valid_to_ms is None else _time(each.valid_to_ms)),
        _VALUE,
    ),
    lambda each: each.valid_from_ms,
)
OUTCOMES: Final = Listed[KeyOutcome](
    "key",
    (
        Column("KEY", lambda each: each.key),
        Column("FOUND", lambda each: each.found),
        Column("VALUE", lambda each: _shown(each.value) if each.found else "-"),
        Column("TIMESTAMP", lambda each: _time(each.timestamp_ms) if each.found else "-"),
        Column("FAILURE", lambda each: "-" if each.failure is None else each.failure.reason.name),
    ),
    lambda each: each.key,
)
STAMPS: Final[Sequence[Column[Stamp]]] = (
    Column("PARTITION", lambda stamp: stamp.partition),
    Column("HOST", lambda stamp: stamp.host),
    Column("ROLE", lambda stamp: stamp.role),
    Column("POSITION", lambda stamp: stamp.position),
    Column("LAG", lambda stamp: stamp.lag),
    Column("STALENESS", lambda stamp: _milliseconds(stamp.staleness_ms)),
    Column("PROCESSOR AGE", lambda stamp: _milliseconds(stamp.processor_age_ms)),
    Column("BACKLOG", lambda stamp: stamp.input_backlog),
    Column("EPOCH", lambda stamp: stamp.epoch),
)
"""Who answered for a partition."""
