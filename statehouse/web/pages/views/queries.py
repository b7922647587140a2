"""The processor's queries: how fast they are, how late, and what waits for them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from statehouse.client.answers import Controller, ProcessorQuery
from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.views.attention import ILL, is_away


@dataclass(frozen=True, slots=True)
class QueryRow:
    """A query. `watermark_lag_ms`: by how much the clock is beyond its watermark."""

    query: ProcessorQuery
    watermark_lag_ms: int | None

    @property
    def is_ill(self) -> bool:
        """Whether it is silent or dies."""
        return self.query.state in ILL


@dataclass(frozen=True, slots=True)
class QueriesView:
    """The queries by name, and who assigns."""

    rows: tuple[QueryRow, ...]
    controller: Controller | None
    controller_age_ms: int | None

    @property
    def is_unassigned(self) -> bool:
        """Whether the controller that acted last has ended, or is silent."""
        return self.controller is not None and is_away(self.controller, self.controller_age_ms or 0)


def queries_view(recorder: Recorder, now: Moment) -> QueriesView:
    """Return the processor's queries."""
    fleet = recorder.fleet
    since_ms = 0 if fleet is None else now.ms_since(recorder.fleet_at.at_s)
    rows = []
    for query in () if fleet is None else fleet.queries:
        watermark_ms = None if query.status is None else query.status.watermark_ms
        late_ms = None if watermark_ms is None else now.epoch_ms - watermark_ms
        rows.append(QueryRow(query, late_ms))
    controller = None if fleet is None else fleet.controller
    return QueriesView(tuple(rows), controller, None if controller is None else controller.record_age_ms + since_ms)
