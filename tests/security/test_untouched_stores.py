"""Slow bodies, broken requests and extreme control records, one after the other: no lookup of another store fails.

The lookups are sent by a program of its own: 300 a second, whatever became of the ones before. It says of each when it
was due, so it is seen that none was left out.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from statehouse.contract.partitioning import partition_for
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.sender import Sender
from tests.security.test_control_topics import (
    ANY_TIMESTAMP,
    MODEL,
    PARTITIONS,
    UNTOUCHED,
    House,
    Written,
    extreme_fleets,
    leading_out,
    of_other_times,
    poisons,
    tombstones,
)
from tests.support.broken_requests import broken_bodies, require_served, slow_bodies
from tests.support.fleet import ServerProcess
from tests.support.kafka import alter_topic, produce_placed
from tests.support.polling import poll_until
from tests.support.proxy import proxy_of

RATE: Final = 300
SLOW_BODIES: Final = 200
SLOW_S: Final = 30.0
BROKEN_BODIES: Final = 10_000
_TIMEOUT_S: Final = 5.0
_AT_ONCE: Final = 25
_KEYS: Final = list(MODEL[UNTOUCHED])
_RECORDS: Final[tuple[Callable[[House], dict[str, list[Written]]], ...]] = (
    poisons,
    extreme_fleets,
    tombstones,
    of_other_times,
    leading_out,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Answers:
    """What came of the lookups; the sender's thread hands them over."""

    def __init__(self) -> None:
        self.due_at: list[float] = []
        self.failed: list[str] = []
        self.took_longest_s = 0.0

    def take(self, line: bytes) -> None:
        """Take the outcome of a lookup."""
        outcome = json.loads(line)
        self.due_at.append(outcome["due_at"])
        self.took_longest_s = max(self.took_longest_s, outcome["took_s"])
        key = _KEYS[outcome["key"]]
        if outcome["code"]:
            self.failed.append(f"{key}: {outcome['code']} {outcome['message']}")
            return
        found = query_service_pb2.GetResponse.FromString(base64.b64decode(outcome["response"]))
        if not found.found or found.value.text != MODEL[UNTOUCHED][key]:
            self.failed.append(f"{key}: {found}")

    def check(self, seconds: float) -> None:
        """Raise AssertionError unless all of that time's lookups were sent, and answered."""
        assert not self.failed, f"{len(self.failed)} of {len(self.due_at)}: {self.failed[:3]}"
        assert len(self.due_at) >= RATE * (seconds - 2.0), "as many as are promised"
        due_at = sorted(self.due_at)
        assert max(b - a for a, b in itertools.pairwise(due_at)) < 2.5 / RATE, "none is left out"


@pytest.fixture(scope="module")
def house(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(kafka.bootstrap, f"untouched-{os.getpid()}", tmp_path_factory.mktemp("house")) as house:
        yield house


def test_no_lookup_fails_and_no_process_ends(house: House, record_property: Callable[[str, object], None]) -> None:
    http_port = free_port()
    way_in = house.router("flooded", http_port=http_port, max_connections=800)
    poll_until(lambda: "router is ready" in way_in.log, 30, "the router")
    poll_until(lambda: _is_served(http_port), 30, "its HTTP port")
    before, answers, began = _pids(house), Answers(), time.monotonic()
    with Sender(_plan(way_in), answers.take, _TIMEOUT_S) as sender:
        with slow_bodies(http_port, UNTOUCHED, SLOW_BODIES):
            until = time.monotonic() + SLOW_S
            while time.monotonic() < until:
                require_served(http_port, UNTOUCHED, _KEYS[:2])
        with broken_bodies(http_port, UNTOUCHED, BROKEN_BODIES) as are_broken:
            while not are_broken():
                require_served(http_port, UNTOUCHED, _KEYS[:2])
        for written in _RECORDS:
            _write(house, written(house))
            poll_until(house.is_complete, 60, f"everything to be as it was before {written.__name__}")
        sender.require_running()
        lasted = time.monotonic() - began
    answers.check(lasted)
    assert _pids(house) == before, "a process has ended"
    for store, entries in MODEL.items():
        assert house.found(store) == entries
    assert "Traceback" not in way_in.log
    record_property("lookups", len(answers.due_at))
    record_property("seconds", round(lasted))
    record_property("slowest_ms", round(answers.took_longest_s * 1_000))


def _write(house: House, records: dict[str, list[Written]]) -> None:
    for topic, of_topic in records.items():
        alter_topic(house.bootstrap, topic, ANY_TIMESTAMP)
        for begin in range(0, len(of_topic), _AT_ONCE):
            placed = [(0, each.key, each.value, each.at_ms) for each in of_topic[begin : begin + _AT_ONCE]]
            produce_placed(house.bootstrap, topic, placed)


def _pids(house: House) -> dict[str, int]:
    """Return the processes, and the proxies of those that have one."""
    servers = [each for each in house.processes if each is not house.controller]
    proxies = {f"{each.name}'s proxy": proxy_of(each.pid) for each in servers}
    return {each.name: each.pid for each in house.processes if each.is_running} | proxies


def _is_served(port: int) -> bool:
    try:
        require_served(port, UNTOUCHED, _KEYS[:2])
    except (OSError, AssertionError):
        return False
    return True


def _plan(way_in: ServerProcess) -> dict[str, Any]:
    def request(key: str) -> str:
        asked = query_service_pb2.GetRequest(store=UNTOUCHED, key=types_pb2.Key(text=key))
        return base64.b64encode(asked.SerializeToString()).decode()

    return {
        "targets": [[way_in.target]],
        "rate": RATE,
        "timeout_s": _TIMEOUT_S,
        "attempt_s": 0,
        "store": UNTOUCHED,
        "clients": [{"target": 0, "first": 0, "request": "", "at_least": False}],
        "keys": [{"partition": partition_for(key.encode(), PARTITIONS), "request": request(key)} for key in _KEYS],
    }
