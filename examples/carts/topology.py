"""Shopping carts: a session ends with a log-off or when nothing happens; a cart left full is abandoned.

Run it with `statehouse process`. The store has open sessions too. When a session is abandoned, it also goes to
`abandoned-carts`, in the same transaction. Spark's operator for arbitrary state, with event-time timers, runs the pure
module `sessions`. Events more than ten minutes late are dropped; Spark counts them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from examples.carts.sessions import ABANDONED, GAP_MS, Change, Event, Session, advance, expire
from processor.application import Application
from processor.operators.json_records import FieldType, parse_json
from processor.operators.refusals import refuse
from processor.rows import (
    DETAIL,
    KEY,
    ORIGIN,
    REASON,
    REFUSAL,
    SESSION_END,
    SESSION_START,
    TIMESTAMP,
    VALUE,
    DeadLetterReason,
)

application_id = "shopping-carts"

EVENTS: Final = "cart-events"
STORE: Final = "carts"
ABANDONED_CARTS: Final = "abandoned-carts"
# Retention counts from a record's time, and a replay's are old: the broker would delete them within minutes.
_KEPT: Final = {"retention.ms": "-1"}

ACTIONS: Final = ("add", "remove", "purchase", "logoff")
GAP: Final = timedelta(milliseconds=GAP_MS)
GRACE: Final = timedelta(minutes=10)
_STATUS: Final = "status"
_OUT_TYPE: Final = (
    f"{KEY} binary, {VALUE} binary, topic string, partition int, offset bigint, {TIMESTAMP} timestamp, "
    f"{REASON} string, {DETAIL} string, start_ms bigint, end_ms bigint, {_STATUS} string"
)
_out: Final = Row(*ORIGIN, *REFUSAL, "start_ms", "end_ms", _STATUS)


class Carts(StatefulProcessor):  # type: ignore[misc] # pyspark counts as untyped
    """Runs a user's sessions."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state: the open session as JSON."""
        self._handle = handle
        self._session = handle.getValueState("session", "session string")

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: tuple[str],
        rows: Iterator[Row],
        timerValues: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        """Yield the changes from a batch's events; dead letters pass unchanged."""
        events = []
        for row in sorted(rows, key=lambda row: (row.timestamp, row.partition, row.offset)):
            if row.reason is None:
                events.append(Event(row.at_ms, row.action, row.item or ""))
            else:
                yield _out(*(row[name] for name in (*ORIGIN, *REFUSAL)), None, None, None)
        if not events:
            return
        before = self._load()
        changes, after = advance(before, events)
        self._save(before, after)
        yield from _rows(key[0], changes)

    def handleExpiredTimer(  # noqa: N802 - Spark's names
        self,
        key: tuple[str],
        timerValues: object,  # noqa: N803, ARG002
        expiredTimerInfo: object,  # noqa: N803, ARG002
    ) -> Iterable[Row]:
        """Yield the session ended by inactivity."""
        session = self._load()
        if session is not None:
            self._session.clear()
            yield from _rows(key[0], expire(session))

    def close(self) -> None:
        """Nothing is open."""

    def _load(self) -> Session | None:
        kept = self._session.get()
        return None if kept is None else Session(**json.loads(kept[0]))

    def _save(self, before: Session | None, after: Session | None) -> None:
        if before is not None and (after is None or after.expires_ms != before.expires_ms):
            self._handle.deleteTimer(before.expires_ms)
        if after is None:
            self._session.clear()
            return
        self._session.update((json.dumps(after.to_json()),))
        self._handle.registerTimer(after.expires_ms)


def _rows(user: str, changes: Iterable[Change]) -> Iterator[Row]:
    for change in changes:
        value: dict[str, Any] = {"items": change.items, "status": change.status}
        stored = None if change.items is None else json.dumps(value).encode()
        yield _out(user.encode(), stored, *[None] * 6, change.start_ms, change.end_ms, change.status)


def _sessions(events: DataFrame) -> DataFrame:
    keyed = events.withColumns(
        {"user": F.coalesce(F.col(KEY).cast("string"), F.lit("")), "at_ms": F.unix_millis(TIMESTAMP)}
    )
    watermarked = keyed.withWatermark(TIMESTAMP, f"{GRACE.total_seconds():g} seconds")
    return watermarked.groupBy("user").transformWithState(
        statefulProcessor=Carts(), outputStructType=_OUT_TYPE, outputMode="Update", timeMode="EventTime"
    )


def build(app: Application) -> None:
    """Declare the source, the sessions, their store and the topic of abandoned carts."""
    parsed = parse_json(app.stream(EVENTS), {"action": FieldType.TEXT, "item": FieldType.TEXT})
    events = refuse(
        parsed,
        (F.col(KEY).isNull(), DeadLetterReason.NULL_KEY, "an event needs its user as key"),
        (~F.col("action").isin(*ACTIONS), "unknown_action", f"field 'action' must be one of {', '.join(ACTIONS)}"),
    )
    # Inactivity must end sessions without new events: an empty batch follows when the watermark has advanced.
    awake = {"spark.sql.streaming.noDataMicroBatches.enabled": "true"}
    carts = app.query(STORE, _sessions(events), conf=awake)
    end = F.timestamp_millis("end_ms")
    carts.session_store(
        STORE,
        columns={SESSION_START: F.timestamp_millis("start_ms"), SESSION_END: end, TIMESTAMP: end},
        retention=timedelta(days=1),
        grace=GRACE,
    )
    carts.topic(ABANDONED_CARTS, where=F.col(_STATUS) == ABANDONED, columns={TIMESTAMP: end}, config=_KEPT)
