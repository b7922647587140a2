"""The last reports of the processor on its queries and changelogs, and of the acting controller on itself."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf.message import Message

from statehouse.contract.moments import why_none
from statehouse.contract.processor_reports import ProcessorReport, ProcessorReports
from statehouse.contract.query_states import ReportedState, reported_state
from statehouse.contract.topology import StoreSpec
from statehouse.control.v1 import assignment_pb2, commits_pb2
from statehouse.errors.checked import COUNT_MAX
from statehouse.v1 import fleet_service_pb2

Wanted = TypeVar("Wanted", bound=Message)


@dataclass(frozen=True, slots=True)
class _Heard:
    commit: commits_pb2.Commit
    report: ProcessorReport
    dated_ms: int
    """The record's time by the driver's clock. Compare it only with times in the record, which are by that clock."""

    def age_of_ms(self, then_ms: int, now_s: float) -> int:
        """Return how long ago a time by the driver's clock was."""
        return max(0, self.dated_ms - then_ms) + self.report.age_ms(now_s)


class ProcessorQueries:
    """The last commit record of each store. Pure; times are seconds of one clock, unless told otherwise."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._reports = ProcessorReports()
        self._moments: dict[str, tuple[str, int]] = {}  # each store's query, and its newest batch whose end is known

    def on_commit(self, commit: commits_pb2.Commit, written_at_s: float, timestamp_ms: int) -> None:
        """Take a record; `timestamp_ms`: its own time, by the driver's clock."""
        self._reports.take(commit, written_at_s)
        if commit.is_moment:
            self._moments[commit.store] = commit.query_id, commit.batch_id
        elif self._moments.get(commit.store, ("", 0))[0] != commit.query_id:
            self._moments.pop(commit.store, None)
        dated_ms = min(max(0, timestamp_ms), COUNT_MAX)  # a writer may give any
        self._heard[commit.store] = _Heard(commit, self._reports.latest[commit.store], dated_ms)

    def on_reset(self, store: str) -> None:
        """Forget a store: its application begins anew."""
        self._heard.pop(store, None)
        self._moments.pop(store, None)
        self._reports.forget(store)

    def is_not_built(self, spec: StoreSpec) -> bool:
        """Whether nothing has been committed into a store, as far as the records that were read say."""
        return spec.committed and spec.name not in self._reports.proven

    def newest_moment(self, store: str) -> tuple[str, int] | None:
        """Return a store's query, and its newest batch whose end the processor has told; None if it has told none."""
        return self._moments.get(store)

    def newest_batch(self, spec: StoreSpec) -> int | None:
        """Return the newest batch whose end the processor has told for a store, None if it has told none."""
        found = self._moments.get(spec.name)
        return None if found is None or why_none(spec) else found[1]

    def describe(self, known_stores: Container[str], now_s: float) -> Iterator[fleet_service_pb2.QueryInfo]:
        """Return the queries that feed known stores, by name."""
        stores: dict[str, list[str]] = {}
        latest: dict[str, _Heard] = {}
        for store, heard in sorted(self._heard.items()):
            if store not in known_stores:
                continue
            name = heard.commit.query or store  # a processor that names no query has one for each store
            stores.setdefault(name, []).append(store)
            if name not in latest or heard.report.at_s > latest[name].report.at_s:
                latest[name] = heard
        for name, heard in sorted(latest.items()):
            yield _query(name, stores[name], heard, now_s)

    def changelogs(self, stores: Mapping[str, StoreSpec], now_s: float) -> Iterator[fleet_service_pb2.ChangelogInfo]:
        """Return the changelogs of stores, by store, as the processor compared them."""
        for name, spec in sorted(stores.items()):
            info = fleet_service_pb2.ChangelogInfo(store=name, topic=spec.changelog_topic)
            heard = self._heard.get(name)
            if heard is not None and heard.commit.HasField("changelog"):
                info.compared_age_ms = heard.age_of_ms(heard.commit.changelog.compared_at_ms, now_s)
                info.settings.extend(
                    _like(fleet_service_pb2.ChangelogSetting, each) for each in heard.commit.changelog.settings
                )
            yield info


class ControllerReport:
    """The acting controller's last record. Pure; times are seconds of one clock."""

    def __init__(self) -> None:
        self._controller: assignment_pb2.Controller | None = None
        self._written_at_s = 0.0

    def on_record(self, controller: assignment_pb2.Controller, written_at_s: float) -> None:
        """Take a record."""
        self._controller, self._written_at_s = controller, written_at_s

    def describe(self, now_s: float) -> fleet_service_pb2.ControllerInfo | None:
        """Return who acts; None if nobody has said so."""
        if self._controller is None:
            return None
        return fleet_service_pb2.ControllerInfo(
            host=self._controller.host,
            standby=self._controller.is_standby,
            stopped=self._controller.has_stopped,
            record_age_ms=max(0, int((now_s - self._written_at_s) * 1000)),
        )


def _query(name: str, stores: list[str], heard: _Heard, now_s: float) -> fleet_service_pb2.QueryInfo:
    commit = heard.commit
    is_dated = commit.HasField("committed_at_ms")
    heard_age_ms = max(0, heard.report.age_ms(now_s) - commit.age_ms)
    state = reported_state(commit, heard_age_ms)
    return fleet_service_pb2.QueryInfo(
        name=name,
        stores=stores,
        idle=commit.idle,
        stopped=commit.stopped,
        record_age_ms=heard.report.age_ms(now_s),
        batch_id=commit.batch_id,
        batch_age_ms=heard.age_of_ms(commit.committed_at_ms, now_s) if is_dated else None,
        status=_status(commit.figures, state) if commit.HasField("figures") else None,
        input_backlog=heard.report.input_backlog,
        state=state,
        failure=_like(fleet_service_pb2.QueryFailure, commit.failure) if commit.HasField("failure") else None,
        heard_age_ms=heard_age_ms,
    )


def _like(kind: type[Wanted], reported: Message) -> Wanted:
    """Return what is reported as a message of another kind, whose fields have the same names."""
    return kind(**{field.name: value for field, value in reported.ListFields()})


def _status(figures: commits_pb2.QueryFigures, state: ReportedState) -> fleet_service_pb2.QueryStatus:
    """Return a query's figures; one that doesn't run reads nothing, whatever its last batch did."""
    status = _like(fleet_service_pb2.QueryStatus, figures)
    if state not in {ReportedState.RUNNING, ReportedState.IDLE}:
        status.ClearField("input_rows_per_second")
        status.ClearField("backlog_eta_ms")
    return status
