"""A scan goes on by its page token while partitions move, a node is killed and comes back, and the router restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.v1 import query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until

MINUTE = 60_000
STARTS = range(0, 5 * MINUTE, MINUTE)
STEADY = [f"steady-{number:03}" for number in range(60)]
PASSING = [f"passing-{number:03}" for number in range(60)]

PASSING_FAILURES = {
    Reason.UNREACHABLE,
    Reason.ROUTING_NOT_READY,
    Reason.NO_REPLICA_AVAILABLE,
    Reason.DEADLINE_EXCEEDED,
}

Key = str | tuple[str, int]


@dataclass
class Scan:
    """A scan through the router, a page at a time. Keys are texts; those of windows come with their start."""

    router: ServerProcess
    windowed: bool
    reverse: bool
    token: str = ""
    found: list[Key] = field(default_factory=list)
    is_done: bool = False

    def read_page(self) -> None:
        """Read one more, however long the router needs to find a node that answers."""
        page = poll_until(self._attempt, 30, "a page")
        self.token = page.next_page_token
        self.is_done = not self.token

    def _attempt(self) -> Any:
        request_type = query_service_pb2.ScanWindowsRequest if self.windowed else query_service_pb2.ScanRequest
        request = request_type(store=STORE, page_size=40 if self.windowed else 8, reverse=self.reverse)
        request.page_token = self.token
        try:
            if self.windowed:
                page = self.router.call(self.router.query.ScanWindows, request)
                self.found += [(each.key.text, each.window.start_ms) for each in page.windows]
            else:
                page = self.router.call(self.router.query.Scan, request)
                self.found += [each.key.text for each in page.entries]
        except LookupFailure as failure:
            assert failure.reason in PASSING_FAILURES  # noqa: PT017 - polled
            return None
        return page


class Data:
    """Writes the same keys to either kind of store."""

    def __init__(self, fleet: Fleet, *, windowed: bool) -> None:
        self._fleet, self._windowed = fleet, windowed

    def put(self, keys: list[str], value: bytes | None) -> None:
        if self._windowed:
            self._fleet.put_records(
                (key, WindowKey(key.encode(), start_ms).to_bytes(), value, start_ms)
                for key in keys
                for start_ms in STARTS
            )
        else:
            self._fleet.put_records((key, key.encode(), value, 0) for key in keys)

    def expected(self, keys: list[str]) -> list[Key]:
        if self._windowed:
            return [(key, start_ms) for key in sorted(keys) for start_ms in STARTS]
        return sorted(keys)


@pytest.fixture
def new_fleet(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Callable[..., Fleet]]:
    opened: list[Fleet] = []

    def made(**spec: Any) -> Fleet:
        opened.append(Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=3, **spec))
        return opened[-1]

    yield made
    for fleet in opened:
        fleet.__exit__()


@pytest.mark.feature("pages-one-moment")
@pytest.mark.parametrize(
    ("windowed", "is_changing"),
    [
        (False, True),
        pytest.param(True, False, marks=pytest.mark.long),
        pytest.param(False, False, marks=pytest.mark.long),
        pytest.param(True, True, marks=pytest.mark.long),
    ],
)
def test_a_scan_survives_moves_crashes_and_restarts(
    new_fleet: Callable[..., Fleet], windowed: bool, is_changing: bool
) -> None:
    spec = {"kind": "window", "retention_ms": 60 * MINUTE, "window_size_ms": MINUTE} if windowed else {}
    fleet = new_fleet(**spec)
    nodes = {name: fleet.node(name) for name in ("n1", "n2", "n3")}
    router = fleet.router()
    data = Data(fleet, windowed=windowed)
    data.put(STEADY + PASSING, b"v")
    fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n2", ("n3",)), TaskAssignment("n3", ("n1",)))
    fleet.wait_running(nodes.values())
    everything = data.expected(STEADY + PASSING)

    def read_all(scan: Scan) -> list[Key]:
        while not scan.is_done:
            scan.read_page()
        return scan.found

    poll_until(lambda: read_all(Scan(router, windowed, reverse=False)) == everything, 30, "everything, routed")

    def restart_router() -> None:
        router.kill()
        router.start()

    # Between two pages one of these happens; each is waited for where the next one builds on it.
    disruptions: list[Callable[[], object]] = [
        lambda: fleet.reassign(0, active="n2", standbys=("n1",)),
        nodes["n1"].kill,
        lambda: data.put(PASSING[::2], None) if is_changing else None,
        restart_router,
        nodes["n1"].start,
        lambda: fleet.wait_running(nodes.values()),
        lambda: data.put([f"new-{number}" for number in range(20)] + PASSING[::3], b"w") if is_changing else None,
        lambda: fleet.reassign(2, active="n1", standbys=("n2",)),
        lambda: data.put(STEADY, b"changed") if is_changing else None,
        nodes["n3"].kill,
    ]
    scans = [Scan(router, windowed, reverse=False), Scan(router, windowed, reverse=True)]
    for disrupt in disruptions:
        for scan in scans:
            assert not scan.is_done, "all of it happens while the scan goes on"
            scan.read_page()
        disrupt()
    for scan in scans:
        found = read_all(scan)
        assert len(found) == len(set(found)), "nothing comes twice"
        assert found == sorted(found, reverse=scan.reverse)
        steady = set(data.expected(STEADY))
        assert set(found) >= steady, "nothing is missed that was there all the time"
        if not is_changing:
            assert found == sorted(everything, reverse=scan.reverse)
