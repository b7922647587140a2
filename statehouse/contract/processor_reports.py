"""What the processor last reported for each store, by the commits topic: when, and what was left to process. Pure.

One rule for the clocks serves nodes and routers, `ReportTimes`. A record has the time of the driver's clock, which may
differ from ours, and either may be set at any time. So the age of a record that arrives while the topic is being
followed comes from our monotonic clock alone. Earlier records of the topic can be dated by the two clocks only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from statehouse.contract.first_batch import Ends, earliest, ends_proven
from statehouse.contract.formats import COMMIT
from statehouse.contract.topology import checked_name
from statehouse.control.v1 import commits_pb2
from statehouse.errors import ContractError
from statehouse.errors.checked import (
    COUNT_MAX,
    PARTITIONS_MAX,
    checked_count,
    checked_list,
    checked_record,
    checked_size,
    checked_text,
    checked_time_ms,
    checked_topic,
)

_CLOCKS_DRIFT: Final = 0.001
"""How much faster than a driver's clock ours may go: twice what NTP corrects a clock by without a step."""
SETTINGS_MAX: Final = 200
"""Settings of a topic in a record; Kafka has about thirty."""
REASONS_MAX: Final = 100
"""Reasons of dead letters in a record; a processor names fewer."""


@dataclass(frozen=True, slots=True)
class ProcessorReport:
    """The last report for a store's query: a batch, or that it had nothing to do, or the last of a processor.

    Attributes:
        at_s: when it was written, monotonic seconds of this process.
        input_backlog: records of the query's sources that were not processed then; None if unknown.

    """

    at_s: float
    input_backlog: int | None

    def age_ms(self, now_s: float) -> int:
        """Return the time since the report. `now_s`: monotonic seconds."""
        return max(0, int((now_s - self.at_s) * 1000))


class ProcessorReports:
    """Keeps the last report for each store, and what the reports prove of its first batch.

    Each record changes `latest` and `proven`; to look a store up is safe from any thread.
    """

    def __init__(self) -> None:
        self.latest: dict[str, ProcessorReport] = {}
        """The last report by store."""
        self.proven: dict[str, Ends] = {}
        """By store, where a replica has a whole batch; a store is absent if no record proves one."""

    def take(self, commit: commits_pb2.Commit, at_s: float) -> None:
        """Take a store's next record in the order of the log, written at `at_s` by our monotonic clock.

        The record that is later in the log was written later, whatever the clocks of two drivers say. So an age never
        grows by a report. The later record also says what was left to process.
        """
        before = self.latest.get(commit.store)
        backlog = commit.input_backlog if commit.HasField("input_backlog") else None
        self.latest[commit.store] = ProcessorReport(at_s if before is None else max(before.at_s, at_s), backlog)
        proven = earliest(self.proven.get(commit.store), ends_proven(commit))
        if proven is not None:
            self.proven[commit.store] = proven

    def forget(self, store: str) -> None:
        """Forget a store: its application begins anew."""
        self.latest.pop(store, None)
        self.proven.pop(store, None)


class ReportTimes:
    """Tells when records of the commits topic were written, in our monotonic time.

    A record that arrives wasn't there when we were last at the topic's end, and isn't of the future: so much is known
    whatever the clocks say. Each record so tells how far the driver's clock may be from ours, and together they tell it
    ever more exactly. A record's time by the driver's clock then tells how long it took to arrive, at the most: an age
    is never told to be less than it is. A record that contradicts the ones before says that a clock has been set. Then
    we begin anew.

    A new driver is like a clock that has been set. Only a step that is shorter than the reader was away, and fell into
    that time, goes unnoticed, until the next record that comes without delay. Not thread-safe.
    """

    def __init__(self) -> None:
        self._ahead_s: tuple[float, float] | None = None
        """Our monotonic clock less the driver's, at the least and at the most."""
        self._at_s = 0.0

    def written_at_s(
        self, commit: commits_pb2.Commit, timestamp_ms: int, now_s: float, wall_ms: float, silence_s: float | None
    ) -> float:
        """Return when what a record says was so, in monotonic seconds.

        Args:
            commit: the record.
            timestamp_ms: its time, by the driver's clock.
            now_s: when it was read, in monotonic seconds.
            wall_ms: the same, by our clock.
            silence_s: how long before that we were last at the topic's end; None if we haven't been.

        """
        if silence_s is None or not commit.HasField("age_ms"):
            return written_at_s(timestamp_ms, now_s, wall_ms)
        before_s = commit.age_ms / 1000
        return now_s - self._took_s(timestamp_ms / 1000 + before_s, now_s, silence_s) - before_s

    def _took_s(self, sent_s: float, now_s: float, silence_s: float) -> float:
        """Return how long a record may have taken that was sent then by the driver's clock."""
        drift_s, self._at_s = _CLOCKS_DRIFT * max(0.0, now_s - self._at_s), now_s
        most_s = now_s - sent_s
        least_s = most_s - silence_s
        if self._ahead_s is not None:
            low_s, high_s = self._ahead_s[0] - drift_s, self._ahead_s[1] + drift_s
            if low_s <= most_s and least_s <= high_s:
                least_s, most_ever_s = max(low_s, least_s), min(high_s, most_s)
                self._ahead_s = least_s, most_ever_s
                return most_s - least_s
        self._ahead_s = least_s, most_s
        return silence_s


def record_age_s(timestamp_ms: int, wall_ms: float) -> float:
    """Return the age of a record, by its writer's clock and by ours, `wall_ms`.

    It is never negative, and never longer than since 1970: a writer may give any timestamp.
    """
    return max(0.0, wall_ms - max(0, timestamp_ms)) / 1000


def written_at_s(timestamp_ms: int, now_s: float, wall_ms: float, silence_s: float | None = None) -> float:
    """Return when a record was written that is read just now, in monotonic seconds.

    `wall_ms`: our wall clock. `silence_s`: for a record that is written only as it is sent, how long ago we were last
    at the topic's end, where it wasn't yet; whatever the clocks say, it is no older. None if we haven't been there.
    """
    age_s = record_age_s(timestamp_ms, wall_ms)
    return now_s - (age_s if silence_s is None else min(age_s, silence_s))


def decode_commit(key: bytes | None, value: bytes) -> commits_pb2.Commit:
    """Read a record of the commits topic.

    Raises:
        ContractError: it is no commit record, its store is not the one that its key names, or a field has a value that
            can't be true.

    """
    try:
        commit = commits_pb2.Commit.FromString(checked_record(value))
    except DecodeError as error:
        raise ContractError(f"it is no commit record: {error}") from error
    COMMIT.check(commit.format_version)
    if commit.store.encode() != key:
        raise ContractError(f"its key is not its store's name, {commit.store[:100]!r}")
    checked_name("store", commit.store)
    checked_text("query", commit.query)
    checked_text("query_id", commit.query_id)
    checked_count("batch_id", commit.batch_id)
    checked_count("input backlog", commit.input_backlog)
    checked_time_ms("committed_at_ms", commit.committed_at_ms)
    checked_count("age_ms", commit.age_ms)
    checked_text("traceparent", commit.traceparent)
    for at in (*checked_list("source ends", commit.source_ends), *checked_list("ends", commit.changelog_ends)):
        checked_topic("topic", at.topic)
        checked_count("partition", at.partition, PARTITIONS_MAX)
        checked_count("offset", at.offset)
    _check_figures(commit.figures)
    checked_size("reason", commit.failure.reason)
    checked_count("restarts", commit.failure.restarts)
    checked_count("heartbeat_interval_ms", commit.heartbeat_interval_ms)
    _check_comparison(commit.changelog)
    return commit


def _check_figures(figures: commits_pb2.QueryFigures) -> None:
    if not 0 <= figures.input_rows_per_second <= COUNT_MAX:  # neither is NaN
        raise ContractError(f"it has {figures.input_rows_per_second} rows a second")
    for what in ("backlog", "backlog_eta_ms", "state_rows", "state_bytes", "dead_letters", "batch_ms", "late_rows"):
        checked_count(what, getattr(figures, what))
    for reason in checked_list("reasons", figures.dead_letters_by_reason, REASONS_MAX):
        checked_text("reason", reason)
        checked_count("dead letters", figures.dead_letters_by_reason[reason])
    checked_time_ms("watermark_ms", abs(figures.watermark_ms))


def _check_comparison(changelog: commits_pb2.TopicComparison) -> None:
    checked_time_ms("compared_at_ms", changelog.compared_at_ms)
    for setting in checked_list("settings of a topic", changelog.settings, SETTINGS_MAX):
        checked_text("setting", setting.name)
        for what in ("wanted", "found", "remedy"):
            checked_size(what, getattr(setting, what))


def input_backlog(processed: Mapping[tuple[str, int], int], ends: Mapping[tuple[str, int], int]) -> int | None:
    """Return the offsets between what was processed and the ends, by (topic, partition); None if an end is missing.

    None also if no source is known.
    """
    if not processed or not processed.keys() <= ends.keys():
        return None
    return sum(max(0, ends[place] - offset) for place, offset in processed.items())
