"""A driver and an ownership controller as processes of their own, whose wall clocks a test can set. Without Spark.

`python -m tests.support.clocked driver|controller BOOTSTRAP APPLICATION_ID PARTITIONS SESSION_TIMEOUT_MS`
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

from processor.ownership.controller import OwnershipController
from processor.ownership.declarations import StoreDeclaration
from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.contract.topology import changelog_topic
from tests.support.fleet import STORE
from tests.support.settings import ownership

HEARTBEAT_MS: Final = 100
REPORT_S: Final = 0.5
_BATCH_S: Final = 3.0


def _drive(bootstrap: str, application_id: str, partitions: int, _session_timeout_ms: int) -> None:
    """Report a batch now and then, and between them that there is nothing to do."""
    changelog = StoreChangelog(STORE, changelog_topic(application_id, STORE), partitions)
    commits = CommitsPublisher(bootstrap, application_id, "query", [changelog])
    commits.start()
    for batch in range(1_000_000):
        commits.publish("query-id", batch, {("events", 0): batch})
        until = time.monotonic() + _BATCH_S
        while time.monotonic() < until:
            time.sleep(REPORT_S / 2)
            commits.repeat(REPORT_S)


def _control(bootstrap: str, application_id: str, partitions: int, session_timeout_ms: int) -> None:
    store = StoreDeclaration(STORE, "query", partitions, changelog_topic(application_id, STORE), value_serde="string")
    settings = ownership(
        heartbeat_interval_ms=HEARTBEAT_MS, session_timeout_ms=session_timeout_ms, num_standby_replicas=1
    )
    OwnershipController(bootstrap, application_id, [store], settings).start()
    threading.Event().wait()


if __name__ == "__main__":
    part, bootstrap, application_id, *numbers = sys.argv[1:]
    {"driver": _drive, "controller": _control}[part](bootstrap, application_id, *map(int, numbers))
