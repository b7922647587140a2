"""What stands around every page: whose fleet it is, how old the view is, and what is wrong with getting it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.views.attention import Health, health_of


class View(StrEnum):
    """What there is to show."""

    LOADING = "loading"
    """No router has answered yet."""
    BROKEN = "broken"
    """No router answers, and none ever has."""
    STALE = "stale"
    """No router answers any more: what was known is shown, and grows old."""
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Frame:
    """The frame of a page. Ages are milliseconds."""

    view: View
    application: str
    epoch: int | None
    at_ms: int
    fleet_age_ms: int | None
    trouble: str
    trouble_age_ms: int | None
    health: Health


def frame_of(recorder: Recorder, now: Moment) -> Frame:
    """Return the frame of a page that is made now."""
    fleet, trouble = recorder.fleet, recorder.trouble
    if fleet is None:
        view = View.LOADING if trouble is None else View.BROKEN
    else:
        view = View.LIVE if trouble is None else View.STALE
    return Frame(
        view,
        "" if fleet is None else fleet.application_id,
        None if fleet is None else fleet.epoch,
        now.epoch_ms,
        None if fleet is None else now.ms_since(recorder.fleet_at.at_s),
        "" if trouble is None else trouble.message,
        None if trouble is None else now.ms_since(trouble.since.at_s),
        health_of(recorder),
    )
