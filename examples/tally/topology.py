"""A running tally of each program: how many members became active and inactive, and the last login.

Run it with `statehouse process`. Every event counts, but its login replaces the known one only if it is later. So a
late event doesn't replace a newer login. Each new tally goes to the store and to the topic `program-tallies`, in one
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from processor.application import Application
from processor.operators.fold import aggregate
from processor.operators.json_records import FieldType, parse_json
from processor.operators.order import RecordPosition
from processor.operators.refusals import refuse
from processor.rows import DeadLetterReason

application_id = "program-tally"

EVENTS: Final = "program-events"
STORE: Final = "tallies"
TALLIES: Final = "program-tallies"
# Retention counts from a record's time, and a replay's are old: the broker would delete them within minutes.
_KEPT: Final = {"retention.ms": "-1"}

ACTIVE: Final = "active"
INACTIVE: Final = "inactive"
NO_LOGIN: Final = "01-01-1970T00:00:00Z"
_LOGIN_FORMAT: Final = "dd-MM-yyyy'T'HH:mm:ssX"


class Tally:
    """Adds events up. The state is the tally and, next to it, the last login as a number, to compare by."""

    def add(self, state: Any, row: Mapping[str, Any], position: RecordPosition) -> Any:  # noqa: ANN401, ARG002 - JSON
        """Return the tally with this event."""
        tally = state or {"numberActive": 0, "numberInactive": 0, "lastLogin": NO_LOGIN, "login_ms": 0}
        tally["numberActive" if row["status"] == ACTIVE else "numberInactive"] += 1
        if row["login_ms"] > tally["login_ms"]:
            tally |= {"lastLogin": row["login"], "login_ms": row["login_ms"]}
        return tally

    def render(self, state: Any) -> Any:  # noqa: ANN401 - JSON
        """Return the tally as it is published."""
        return {name: state[name] for name in ("numberActive", "numberInactive", "lastLogin")}


def build(app: Application) -> None:
    """Declare the source, the tally, its store and its topic."""
    parsed = parse_json(app.stream(EVENTS), {"status": FieldType.TEXT, "login": FieldType.TEXT})
    events = parsed.withColumn("login_ms", F.unix_millis(F.try_to_timestamp("login", F.lit(_LOGIN_FORMAT))))
    judged = refuse(
        events,
        (
            ~F.col("status").isin(ACTIVE, INACTIVE),
            "unknown_status",
            f"field 'status' must be {ACTIVE!r} or {INACTIVE!r}",
        ),
        (
            F.col("login_ms").isNull(),
            DeadLetterReason.INVALID_TIME,
            "field 'login' must look like 31-12-2024T23:59:59Z",
        ),
    )
    tallies = app.query(STORE, aggregate(judged, Tally(), record_cache=False))
    tallies.store(STORE)
    tallies.topic(TALLIES, config=_KEPT)
