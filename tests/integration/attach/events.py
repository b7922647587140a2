"""The events that the jobs read: batches with all that production has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_SCHEMA = pa.schema(
    [
        ("user", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(6, 2)),
        ("big", pa.decimal128(30, 10)),
        ("n", pa.int64()),
        ("d", pa.float64()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tag", pa.binary()),
    ]
)
# The hour that Berlin has twice in 2026: 02:30 summer time, and 02:30 again.
_START = datetime(2026, 10, 25, 0, 30, 0, 123, UTC)
_NAMES = [b"Zo\xe9", b"Zo\xeb", b"Zoe", b"\\xE9", b"\xff", b"", b"caf\xc3\xa9"]
_CITIES = ["Köln", "Ürümqi", None, 'a"b\\c']


@dataclass(frozen=True)
class Event:
    """One event."""

    user: str | None
    raw: bytes
    at: datetime
    amount: Decimal | None
    big: Decimal | None
    n: int
    d: float
    place: dict[str, str | int | None]
    tag: bytes


def made_events(batches: int, per_batch: int) -> list[list[Event]]:
    """Return batches of events. The last batch has events that come too late for windows of a minute."""
    made: list[list[Event]] = []
    for batch in range(batches):
        events = []
        for place in range(per_batch):
            number = batch * per_batch + place
            at = _START + timedelta(seconds=number * 7, microseconds=number)
            if batch == batches - 1 and place % 4 == 0:
                at = _START + timedelta(seconds=place, microseconds=7)
            user = [None, "ann", "bob", "eve \\xE9", "zoë"][number % 5]
            has_amounts = user != "bob"
            events.append(
                Event(
                    user,
                    _NAMES[number % len(_NAMES)],
                    at,
                    Decimal(number * 125).scaleb(-2) if has_amounts else None,
                    Decimal(f"{number}2345678901234567.0123456789") if has_amounts else None,
                    1234567890123456000 + number % 23,
                    number * 0.1,
                    {"city": _CITIES[number % len(_CITIES)], "zip": number % 3 or None},
                    bytes([number % 4, 255, 0]),
                )
            )
        made.append(events)
    return made


def write_events(directory: Path, batches: Sequence[Sequence[Event]], first: int = 0) -> None:
    """Write a file for each batch; Spark reads them in this order."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, batch in enumerate(batches, first):
        table = pa.Table.from_pylist([asdict(event) for event in batch], _SCHEMA)
        file = directory / f"{number:03}.parquet"
        pq.write_table(table, file.with_suffix(".tmp"))
        os.utime(file.with_suffix(".tmp"), (number + 1, number + 1))
        file.with_suffix(".tmp").rename(file)
