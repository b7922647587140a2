"""Every command of docs/grpcurl.md, run against the leaderboard; what comes back is what stands on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from statehouse.client import Client
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import is_settled
from tests.support.console import Shell, play
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(600)

PAGE: Final = Path(__file__).parents[2] / "docs" / "grpcurl.md"
VOLATILE: Final = frozenset(
    {
        "port",
        "instance_id",
        "epoch",
        "position",
        "lag",
        "staleness_ms",
        "processor_age_ms",
        "timestamp_ms",
        "topic_id",
        "next_page_token",
        "message",
    }
)


@pytest.mark.feature("call-works-grpcurl")
def test_the_ten_first_calls(cluster: LocalCluster, client: Client):
    poll_until(lambda: is_settled(client), 60, "a caught-up standby of every partition")
    assert play(PAGE.read_text(), Shell({"7100": cluster.router.port}), VOLATILE) == 10
