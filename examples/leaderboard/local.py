"""The leaderboard as an application of a local cluster: it has an HTTP API in addition to its topology."""

from __future__ import annotations

from typing import Final

from examples.leaderboard.topology import application_id
from statehouse.local.applications import LocalApplication

APPLICATION: Final = LocalApplication(
    name="leaderboard",
    application_id=application_id,
    topology="examples.leaderboard.topology",
    sample="examples.leaderboard.sample",
    http_api="examples.leaderboard.http_api",
    http_page="/leaderboard",
    http_probe="/leaderboard/count",
)
