"""The history of a run: every lookup, write, fault and epoch, as JSON lines on disk.

Times are seconds of this machine's monotonic clock since the run began. The recorder keeps nothing in memory; the
whole history is read back after the run, and can be read again later.
"""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from sys import intern
from types import MappingProxyType
from typing import Any, Final, Self

ACTIVE_ONLY: Final = "active_only"
MAX_LAG: Final = "max_lag"
MAX_STALENESS: Final = "max_staleness"
AT_LEAST: Final = "at_least"
ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class LookupRecord:
    """A lookup and what came of it.

    Attributes:
        router: the one that was asked last.
        due_at: when it was to be sent; it never is before.
        took_s: from then until its end.
        bound: one of the names above; the three that follow say how much.
        found: None if nobody answered.
        version: of the value found.
        reason: why nobody answered, empty if somebody did; `candidates` says it of each replica.

    """

    client: str
    router: str
    key: str
    partition: int
    due_at: float
    took_s: float
    bound: str = ANY
    max_lag: int | None = None
    max_staleness_ms: int | None = None
    at_least: int | None = None
    found: bool | None = None
    version: int | None = None
    host: str = ""
    role: str = ""
    epoch: int = 0
    position: int | None = None
    lag: int | None = None
    staleness_ms: int | None = None
    reason: str = ""
    message: str = ""
    candidates: tuple[str, ...] = ()

    @property
    def done_at(self) -> float:
        return self.due_at + self.took_s

    @property
    def answered(self) -> bool:
        return self.found is not None


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call, and what came of each of its lookups: in each what is its own, by the names in LookupRecord."""

    client: str
    router: str
    due_at: float
    took_s: float
    bound: str
    max_lag: int | None
    max_staleness_ms: int | None
    lookups: tuple[Mapping[str, Any], ...]

    def each(self) -> Iterator[LookupRecord]:
        """Yield its lookups."""
        common = (self.due_at, self.took_s, self.bound, self.max_lag, self.max_staleness_ms)
        for lookup in self.lookups:
            # A history of millions has each name once.
            rest: dict[str, Any] = {
                name: intern(value) if type(value) is str else value for name, value in lookup.items()
            }
            yield LookupRecord(self.client, self.router, rest.pop("key"), rest.pop("partition"), *common, **rest)


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """A version of a key's value, and when it was known to be readable to who reads what is committed."""

    key: str
    version: int
    partition: int
    offset: int
    acked_at: float


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """Something done to the cluster.

    Attributes:
        kind: what, in a word or two, as "SIGKILL" or "add node".
        target: to whom.
        ended_at: when it was undone, or its consequences were over.
        may_fail: bounds under which a lookup may fail meanwhile, by the table of failures in the design: those that
            no replica that is left can satisfy.

    """

    kind: str
    target: str
    began_at: float
    ended_at: float
    may_fail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """An epoch of the assignment, as read from its topic: per partition the active and all replicas."""

    epoch: int
    at: float
    actives: tuple[str, ...]
    replicas: tuple[tuple[str, ...], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RouterRecord:
    """From this time on at the latest, a router acts on this epoch."""

    router: str
    epoch: int
    at: float


@dataclass(frozen=True, slots=True)
class FinalRecord:
    """What a replica holds of a key when all is quiet; version None: not found."""

    key: str
    partition: int
    host: str
    role: str
    version: int | None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as a whole: the last record.

    Attributes:
        settings: what the run was made with, for people.
        copies: replicas that each task should have.
        count: entries in the store at the end, counted exactly over all partitions.

    """

    scenario: str
    seconds: float
    settings: str
    copies: int
    count: int


Record = CallRecord | WriteRecord | FaultRecord | EpochRecord | RouterRecord | FinalRecord | RunRecord
_TYPES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "call": CallRecord,
        "write": WriteRecord,
        "fault": FaultRecord,
        "epoch": EpochRecord,
        "router": RouterRecord,
        "final": FinalRecord,
        "run": RunRecord,
    }
)
_NAMES: Final = {cls: name for name, cls in _TYPES.items()}


class Recorder:
    """Writes records as they come, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._began_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._file.close()

    def at(self, monotonic_s: float) -> float:
        """Return a time of the monotonic clock as the run counts it."""
        return monotonic_s - self._began_at

    @property
    def now(self) -> float:
        return self.at(time.monotonic())

    def add(self, record: Record) -> None:
        """Write a record; after the end it is dropped."""
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        line = json.dumps({"type": _NAMES[type(record)], **values}, separators=(",", ":"))
        with self._lock:
            if not self._file.closed:
                self._file.write(line + "\n")


@dataclass(frozen=True, slots=True)
class History:
    """A run, read back. Lookups are in the order of their ends, everything else in the order of its times."""

    lookups: tuple[LookupRecord, ...] = ()
    writes: tuple[WriteRecord, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    epochs: tuple[EpochRecord, ...] = ()
    routers: tuple[RouterRecord, ...] = ()
    finals: tuple[FinalRecord, ...] = ()
    run: RunRecord | None = None

    @classmethod
    def of(cls, records: Iterable[Record | LookupRecord]) -> History:
        """Sort records into a history; one of ten million lookups takes 5 GB."""
        by_type: dict[type[Any], list[Any]] = defaultdict(list)
        for record in records:
            if isinstance(record, CallRecord):
                by_type[LookupRecord] += record.each()
            else:
                by_type[type(record)].append(record)
        runs = by_type[RunRecord]
        return cls(
            tuple(sorted(by_type[LookupRecord], key=lambda lookup: lookup.done_at)),
            tuple(sorted(by_type[WriteRecord], key=lambda write: write.acked_at)),
            tuple(sorted(by_type[FaultRecord], key=lambda fault: fault.began_at)),
            tuple(sorted(by_type[EpochRecord], key=lambda epoch: epoch.epoch)),
            tuple(sorted(by_type[RouterRecord], key=lambda record: record.at)),
            tuple(by_type[FinalRecord]),
            runs[-1] if runs else None,
        )

    @classmethod
    def load(cls, path: Path) -> History:
        """Read a file of a recorder."""
        with path.open(encoding="utf-8") as file:
            return cls.of(_record(json.loads(line)) for line in file)


def _record(values: dict[str, Any]) -> Record:
    record_type = _TYPES[values.pop("type")]
    made: Record = record_type(**{name: _tuples(value) for name, value in values.items()})
    return made


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
