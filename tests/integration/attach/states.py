"""Which states of the jobs are served, as which stores, and what they must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.integration.attach import models
from tests.integration.attach.models import Batches, Entries

INPUT = "amount DECIMAL(6,2), big DECIMAL(30,10), at TIMESTAMP, n BIGINT, d DOUBLE"
SUMS = {
    "total": "sum(amount)",
    "mean": "avg(amount)",
    "bigs": "sum(big)",
    "big_mean": "avg(big)",
    "since": "min(at)",
    "until": "max(at)",
    "top": "max(n)",
    "hits": "count(*)",
    "spread": "stddev(d)",
    "d_mean": "avg(d)",
    "first": "first(n)",
    "last": "last(n, true)",
    "of_top": "max_by(d, n)",
}


@dataclass(frozen=True)
class State:
    """A state of a job.

    Attributes:
        job: its name in `jobs.JOBS`.
        store: the store's name.
        model: what it must have; None: what Spark's own reader says, alone.
        options: of its table in the file of states.
        as_spark: whether values are those that Spark keeps, so that its reader can be compared with.

    """

    job: str
    store: str
    model: Callable[[Batches], Entries] | None
    options: Mapping[str, Any] = field(default_factory=dict)
    as_spark: bool = True


STATES = (
    State("two_columns", "two-columns", models.two_columns),
    State("latin", "latin", models.latin),
    State("sums", "sums", models.sums, {"aggregates": SUMS, "input": INPUT}, as_spark=False),
    State("means", "means", models.means, as_spark=False),
    State("key_types", "key-types", models.key_types),
    State("structs", "structs", models.structs),
    State("window_update", "window-update", models.window_update),
    State("window_append", "window-append", None, {"as": "window"}, as_spark=False),
    State("sessions", "sessions", models.sessions),
    State("sessions", "sessions-apart", None, {"as": "session", "hide": ["user", "session_window"]}, as_spark=False),
    State("dedup", "dedup", models.dedup),
    State("dedup_watermark", "dedup-watermark", models.dedup_watermark),
    State("join", "join-left", None, {"state_store": "left-keyWithIndexToValue"}),
    State("join", "join-right", None, {"state_store": "right-keyWithIndexToValue"}),
    State(
        "join_left",
        "outer-left",
        None,
        {"state_store": "left-keyWithIndexToValue", "hide": ["matched"]},
        as_spark=False,
    ),
    State("pandas", "visits", models.visits),
    State("tws", "profile-total", partial(models.profiles, part="total"), {"state_variable": "total"}),
    State("tws", "profile-cities", partial(models.profiles, part="cities"), {"state_variable": "cities"}),
    State("tws", "profile-numbers", partial(models.profiles, part="numbers"), {"state_variable": "numbers"}),
    State("tws", "profile-recent", None, {"state_variable": "recent"}, as_spark=False),
    State("two_operators", "of-minutes", None, {"operator": 1}),
    State("two_operators", "of-half-hours", None, {"operator": 0}),
    State("foreach_batch", "by-number", models.foreach_batch),
    State("parts200", "parts200", models.parts200),
    State("parts200", "rests", models.rests, {"values": {"rest": "100 / (count - 5)"}}, as_spark=False),
)


def states_of(provider: str, jobs: set[str] | None = None) -> list[State]:
    """The states of some jobs. The default provider has no `transformWithState`."""
    return [each for each in STATES if (jobs is None or each.job in jobs) and (each.job != "tws" or provider != "hdfs")]


def as_toml(states: list[State], checkpoints: str) -> str:
    """The file that names the states."""
    lines: list[str] = []
    for each in states:
        lines += ["[[state]]", f'checkpoint = "{checkpoints}/{each.job}"', f'store = "{each.store}"']
        tables = {name: value for name, value in each.options.items() if isinstance(value, dict)}
        lines += [f"{name} = {value!r}" for name, value in each.options.items() if name not in tables]
        for name, table in tables.items():
            lines += [f"[state.{name}]", *(f'{field} = "{sql}"' for field, sql in table.items())]
    return "\n".join(lines) + "\n"
