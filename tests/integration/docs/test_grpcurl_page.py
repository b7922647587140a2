"""Every command of docs/grpcurl.md, run against a real fleet; what comes back is what stands on the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from statehouse.assignment import TaskAssignment
from statehouse.composite import SessionKey, WindowKey
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from statehouse.partitioning import partition_for
from statehouse.topology import SESSION, VERSIONED, WINDOW, StoreSpec, changelog_topic
from tests.integration.docs.console import ELIDED, Command, commands, shape
from tests.integration.routing.routed import UNHEDGED
from tests.support.fleet import Fleet, ServerProcess
from tests.support.kafka import create_topic
from tests.support.polling import poll_until

_ROOT: Final = Path(__file__).parents[3]
PAGE: Final = _ROOT / "docs" / "grpcurl.md"
PARTITIONS: Final = 2
MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 1_699_999_980_000
# Of these only the type counts: addresses, places in logs, durations, names made up for a run.
VOLATILE: Final = frozenset(
    {
        *("port", "incarnation", "version", "changelog_topic", "application_id"),
        *("position", "end_offset", "lag", "offset", "topic_id", "restored_from", "restored_records"),
        *("staleness_ms", "heartbeat_age_ms", "timestamp_ms", "took_ms", "sent_after_ms", "hedge_after_ms"),
        *("next_page_token", "message", "detail"),
    }
)

Record = tuple[str, bytes, bytes, int]
RECORDS: Final[dict[str, list[Record]]] = {
    "counts": [
        (name, name.encode(), json.dumps({"count": count}).encode(), BEGIN_MS)
        for name, count in (("ann", 12), ("bob", 3), ("cat", 5), ("dan", 1))
    ],
    "clicks": [
        (name, WindowKey(name.encode(), BEGIN_MS + number * MINUTE_MS).to_bytes(), b"%d" % number, BEGIN_MS)
        for name in ("ann", "bob")
        for number in range(2)
    ],
    "visits": [("ann", SessionKey(b"ann", BEGIN_MS, BEGIN_MS + 5_000).to_bytes(), b"3 pages", BEGIN_MS)],
    "prices": [("ann", b"ann", price, 1_700_000_000_000 + 1_000 * n) for n, price in enumerate((b"10", b"12", b"9"))],
}


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    application_id = f"grpcurl-{uuid.uuid4().hex[:8]}"
    kinds = {"clicks": WINDOW, "visits": SESSION, "prices": VERSIONED}
    beside = [
        StoreSpec(
            name,
            changelog_topic(application_id, name),
            PARTITIONS,
            0,
            kind=kind,
            value_serde="string",
            retention_ms=60 * MINUTE_MS,
            window_size_ms=MINUTE_MS if kind == WINDOW else 0,
        )
        for name, kind in kinds.items()
    ]
    for spec in beside:
        create_topic(kafka.bootstrap, spec.changelog_topic, PARTITIONS, {"cleanup.policy": "compact"})
    directory = tmp_path_factory.mktemp("grpcurl")
    with Fleet(kafka.bootstrap, application_id, directory, value_serde="json", beside=beside) as fleet:
        for name, records in RECORDS.items():
            put(kafka.bootstrap, changelog_topic(application_id, name), records)
        holders = {
            partition_of("ann"): TaskAssignment("node-a", ("node-b",)),
            partition_of("cat"): TaskAssignment("node-b"),
        }
        fleet.assign(*(holders[partition] for partition in range(PARTITIONS)), reason="a page of documentation")
        nodes = [fleet.node("node-a"), fleet.node("node-b")]
        router = fleet.router("router", **UNHEDGED)
        fleet.wait_running(nodes)
        poll_until(lambda: all(answers(router, name) for name in ("ann", "cat")), 30, "the router")
        yield fleet


def put(bootstrap: str, topic: str, records: Iterable[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for key, record_key, value, timestamp_ms in records:
        producer.produce(topic, key=record_key, value=value, partition=partition_of(key), timestamp=timestamp_ms)
    assert producer.flush(30.0) == 0


def partition_of(key: str) -> int:
    return partition_for(key.encode(), PARTITIONS)


def answers(router: ServerProcess, key: str) -> bool:
    try:
        return router.get(key, max_lag=0).found
    except LookupFailure:
        return False


class Shell:
    """Runs the page's commands: its ports become the fleet's, and variables that it sets stay."""

    def __init__(self, fleet: Fleet) -> None:
        ports = {process.name: str(process.port) for process in fleet.processes}
        self._ports = {"7100": ports["router"], "7101": ports["node-a"], "7102": ports["node-b"]}
        path = os.pathsep.join([str(_ROOT / ".tools" / "bin"), os.environ.get("PATH", "")])
        if shutil.which("grpcurl", path=path) is None:
            pytest.skip("grpcurl is not installed: run `make tools`")
        self._environment = {**os.environ, "PATH": path}

    def run(self, command: Command) -> str:
        """Return what a command prints, failures included."""
        line = re.sub(r"localhost:(\d+)", lambda found: f"localhost:{self._ports[found[1]]}", command.line)
        variable = re.match(r"([A-Z]+)=", line)
        if variable is not None:
            line += f'; printf %s "${variable[1]}"'
        done = subprocess.run(
            ["bash", "-c", line],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=30,
            check=False,
        )
        if variable is None:
            return done.stdout.strip()
        assert done.stdout, f"{command.line} gave nothing"
        self._environment[variable[1]] = done.stdout
        return ""


def test_what_the_page_shows_comes_back(fleet: Fleet) -> None:
    shell = Shell(fleet)
    listed = commands(PAGE.read_text())
    assert len(listed) > 30, "the page's commands are found"
    for command in listed:
        output = shell.run(command)
        if command.output == ELIDED:
            assert output.startswith("{"), command
        else:
            assert shape(output, VOLATILE) == shape(command.output, VOLATILE), f"{command.line}\n{output}"
