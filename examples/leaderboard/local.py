"""The leaderboard as an application of a local cluster."""

from __future__ import annotations

from typing import Final

from statehouse.local.applications import LocalApplication

APPLICATION: Final = LocalApplication(
    name="leaderboard",
    application_id="video-game-leaderboard",
    topology="examples.leaderboard.topology",
    producer="examples.leaderboard.produce",
    http_api="examples.leaderboard.http_api",
    http_page="/leaderboard",
    http_probe="/leaderboard/count",
    store="leader-boards",
    key="1",
)
