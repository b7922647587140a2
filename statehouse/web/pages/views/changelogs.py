"""The settings of the stores' changelogs, wanted and found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from statehouse.client.answers import ChangelogSetting, ChangelogSettings
from statehouse.web.pages.blocks import paged
from statehouse.web.pages.recorder import Moment, Recorder

CHANGELOGS_A_PAGE: Final = 25


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting. `remedy`: what to do if it isn't as it is wanted, empty otherwise."""

    name: str
    wanted: str
    found: str | None
    differs: bool
    remedy: str


@dataclass(frozen=True, slots=True)
class ChangelogRow:
    """A store's changelog. `compared_age_ms`: None while the processor has not said how it is."""

    store: str
    topic: str
    is_global: bool
    compared_age_ms: int | None
    settings: tuple[SettingRow, ...]

    @property
    def differing(self) -> int:
        """How many settings are not as they are wanted."""
        return sum(each.differs for each in self.settings)


@dataclass(frozen=True, slots=True)
class ChangelogsView:
    """A page of changelogs, those that differ first. `differing`: settings, of all changelogs."""

    total: int
    differing: int
    compared: int
    page: int
    pages: int
    rows: tuple[ChangelogRow, ...]
    is_known: bool


def changelogs_view(recorder: Recorder, now: Moment, page: int) -> ChangelogsView:
    """Return a page of the changelogs; a page beyond the last is the last."""
    changelogs = recorder.changelogs
    since_ms = now.ms_since(recorder.changelogs_at.at_s) if changelogs is not None else 0
    rows = sorted(
        (_row(recorder, each, since_ms) for each in changelogs or ()), key=lambda row: (not row.differing, row.store)
    )
    page, pages, shown = paged(rows, CHANGELOGS_A_PAGE, page)
    return ChangelogsView(
        len(rows),
        sum(row.differing for row in rows),
        sum(row.compared_age_ms is not None for row in rows),
        page,
        pages,
        tuple(shown),
        changelogs is not None,
    )


def _row(recorder: Recorder, changelog: ChangelogSettings, since_ms: int) -> ChangelogRow:
    store = recorder.store(changelog.store)
    age_ms = changelog.compared_age_ms
    return ChangelogRow(
        changelog.store,
        changelog.topic,
        store is not None and store.is_global,
        None if age_ms is None else age_ms + since_ms,
        tuple(map(_setting, changelog.settings)),
    )


def _setting(setting: ChangelogSetting) -> SettingRow:
    remedy = setting.remedy
    if setting.differs and not remedy:
        done = "creates the topic" if setting.found is None else "changes it"
        remedy = f"`statehouse topics apply` {done}, and so does the next start of the processor"
    return SettingRow(setting.name, setting.wanted, setting.found, setting.differs, remedy)
