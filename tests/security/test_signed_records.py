"""Where TLS is on, records of control topics have authors: what others write there changes nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from statehouse.contract.assignment import CONTROLLER_KEY, MANIFEST_KEY
from statehouse.contract.topology import assignment_topic, changelog_topic, commits_topic, members_topic
from statehouse.control.v1 import assignment_pb2, commits_pb2, members_pb2, signatures_pb2
from statehouse.kafka.authors import HEADER
from statehouse.kafka.control_log import ControlLogReader
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK
from statehouse.runtime.brokers import Brokers, RecordSecurity
from statehouse.security.record_signatures import ControlRecord, RecordSigner
from statehouse.v1 import fleet_service_pb2
from tests.support.certificates import Authority, Issued
from tests.support.fleet import NAME, STORE, ServerProcess, Servers
from tests.support.kafka import create_topic, produce, read_all
from tests.support.polling import poll_until
from tests.support.secured import RULES, Keys, uri

ENTRIES: Final = {f"k{number}": f"value {number}" for number in range(50)}
Written = tuple[str, bytes, bytes | None, bytes | None]
"""A record, and its signature."""


class Signed(Servers):
    """Two nodes, a router and a controller with TLS and rules, which take signed records only."""

    def __init__(self, bootstrap: str, application_id: str, directory: Path) -> None:
        super().__init__(bootstrap, application_id, directory, heartbeat_interval_ms=200, session_timeout_ms=4_000)
        self.keys = Keys(directory)
        self.keys.issued["processor"] = self.keys.issue("processor")
        self.keys.write_rules({**RULES, "processor": {"roles": ["processor"]}})
        self.credentials = self.keys.credentials("all")
        self._revoked: list[Issued] = []
        changelog = changelog_topic(application_id, STORE)
        create_topic(bootstrap, changelog, 1, {"cleanup.policy": "compact"})
        produce(bootstrap, changelog, ((key.encode(), value.encode()) for key, value in ENTRIES.items()))
        topology = directory / "topology.toml"
        topology.write_text(
            f'application_id = "{application_id}"\n[[stores]]\nname = "{STORE}"\nvalue_serde = "string"\n'
        )
        given = {**self.keys.options("processor"), "initial_rebalance_delay_ms": 500, **self._timing}
        options = {key.replace("_", "-"): value for key, value in given.items()}
        self.controller = ServerProcess(
            "controller",
            "processor.cli",
            {"static": topology, "bootstrap": bootstrap, "require-signed-records": True, **options},
            0,
            directory,
        )
        self.processes.append(self.controller.start())
        required = {"require_signed_records": True}
        self.nodes = [self.node(name, **self.keys.options("node"), **required) for name in ("n1", "n2")]
        self.way_in = self.router(**self.keys.options("router"), **required)
        poll_until(self.is_complete, 120, "the store, with an active and a standby")

    def members(self, router: ServerProcess | None = None) -> dict[str, str]:
        """Return the members that a router knows, and where they are."""
        fleet = (router or self.way_in).fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=5.0)
        return {node.host.instance_id: f"{node.host.host}:{node.host.port}" for node in fleet.nodes}

    def epoch(self) -> int:
        return self.way_in.fleet.GetFleet(fleet_service_pb2.GetFleetRequest(), timeout=5.0).epoch

    def is_complete(self) -> bool:
        if "router is ready" not in self.way_in.log:
            return False
        return all(
            [store.lag for task in node.node().tasks for store in task.stores if store.HasField("lag")] == [0]
            for node in self.nodes
        )

    def assignment_signers(self) -> set[bytes]:
        """Return the certificates by which the assignment's last records are signed, in DER."""
        last = {key: signatures for key, _, signatures in self.headers(assignment_topic(self.application_id))}
        signed = (signatures_pb2.RecordSignature.FromString(each) for (each,) in last.values())
        return {each.certificates[0] for each in signed}

    def revoke(self, issued: Issued) -> None:
        """Revoke one more certificate: what those before have written is still in the topics."""
        self._revoked.append(issued)
        self.keys.revoke(*self._revoked)

    def write(self, *records: Written) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for topic, key, value, header in records:
            producer.produce(topic, key=key, value=value, headers=[] if header is None else [(HEADER, header)])
        assert producer.flush(20) == 0

    def newest(self, topic: str, key: bytes) -> bytes:
        return next(value for found, value in reversed(list(read_all(self.bootstrap, topic))) if found == key and value)

    def headers(self, topic: str) -> list[tuple[bytes, bytes | None, list[bytes]]]:
        """Return each record's key, value and signatures."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "signed"})
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=10)
        consumer.assign([place])
        found: list[tuple[bytes, bytes | None, list[bytes]]] = []
        position = 0
        while position < end - 1:  # the last one may be the marker of a transaction
            message = consumer.poll(1)
            if message is None:
                break
            position = message.offset() + 1
            signatures = [content for name, content in message.headers() or () if name == HEADER]
            found.append((message.key(), message.value(), signatures))
        consumer.close()
        return found


@pytest.fixture(scope="module")
def signed(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with Signed(kafka.bootstrap, f"signed-{os.getpid()}", tmp_path_factory.mktemp("signed")) as signed:
        yield signed


def forged(signed: Signed, by: Issued | None) -> list[Written]:
    """Return what somebody writes who wants to lead the fleet astray, signed by a certificate or not at all."""
    topics = [topic(signed.application_id) for topic in (members_topic, assignment_topic, commits_topic)]
    members, assignments, commits = topics
    elsewhere = members_pb2.Member.FromString(signed.newest(members, b"n1"))
    elsewhere.host, elsewhere.port, elsewhere.incarnation = "192.0.2.1", 9, "ff"
    elsewhere.started_at_ms += 60_000
    stranger = members_pb2.Member(instance_id="n3", incarnation="0f", host=LOOPBACK, port=1, state="RUNNING")
    manifest = assignment_pb2.AssignmentRecord.FromString(signed.newest(assignments, MANIFEST_KEY.encode()))
    task = assignment_pb2.AssignmentRecord.FromString(signed.newest(assignments, b"task/0"))
    manifest.epoch = manifest.manifest.epoch = manifest.manifest.keys["task/0"] = task.epoch = manifest.epoch + 5
    task.sub_topology.tasks[0].active = "n3"
    controller = assignment_pb2.AssignmentRecord.FromString(signed.newest(assignments, CONTROLLER_KEY))
    controller.controller.controller = "somebody"
    commit = commits_pb2.Commit(store=STORE, query_id="q", batch_id=7, query="q")
    records = [
        *((ControlRecord(members, b"n1", each.SerializeToString())) for each in (elsewhere, elsewhere)),
        ControlRecord(members, b"n3", stranger.SerializeToString()),
        ControlRecord(members, b"n2", None),
        ControlRecord(assignments, b"task/0", task.SerializeToString()),
        ControlRecord(assignments, MANIFEST_KEY.encode(), manifest.SerializeToString()),
        ControlRecord(assignments, CONTROLLER_KEY, controller.SerializeToString()),
        ControlRecord(commits, STORE.encode(), commit.SerializeToString()),
    ]
    signs = None
    if by is not None:
        signs = RecordSigner(by.certificate_path.read_bytes(), by.key_path.read_bytes(), b"somebody")
    now_ms = int(time.time() * 1000)
    return [
        (each.topic, each.key or b"", each.value, None if signs is None else signs.header(each, now_ms))
        for each in records
    ]


@pytest.mark.parametrize("who", ["nobody", "another CA", "router", "revoked"])
def test_what_others_write_to_control_topics_changes_nothing(signed: Signed, tmp_path: Path, who: str) -> None:
    by: Any = {
        "nobody": lambda: None,
        "another CA": lambda: Authority(tmp_path, "house").issue((NAME,), (uri("node"), uri("processor"))),
        "router": lambda: signed.keys.issued["router"],
        "revoked": lambda: signed.keys.issue("node"),
    }[who]()
    if who == "revoked":
        signed.revoke(by)
        time_out = time.monotonic() + 3.0
        poll_until(lambda: time.monotonic() > time_out, 10, "the processes to look at the list")
    members, epoch = signed.members(), signed.epoch()
    records = forged(signed, by)
    skipped = sum(process.log.count("control record skipped") for process in signed.processes)
    signed.write(*records)
    for key, value in ENTRIES.items():
        assert signed.way_in.get(key, active_only=True).value.text == value
    # The assignment's last records were nobody's who may write them: the controller writes its own again.
    poll_until(lambda: signed.epoch() > epoch, 30, "the assignment to be published again")
    assert signed.members() == members
    assert signed.epoch() <= epoch + 2, "not the one that was forged"
    poll_until(signed.is_complete, 30, "everything to run")
    for key, value in ENTRIES.items():
        assert signed.way_in.get(key, active_only=True).value.text == value
    assert all(process.is_running for process in signed.processes)
    assert sum(process.log.count("control record skipped") for process in signed.processes) >= skipped
    assert "control record skipped" in signed.nodes[0].log
    assert "somebody" not in signed.controller.log


def test_all_that_processes_write_is_signed_and_old_heartbeats_count_no_more(signed: Signed) -> None:
    members, assignments = (topic(signed.application_id) for topic in (members_topic, assignment_topic))
    heartbeats = [each for each in signed.headers(members) if each[0] == b"n1" and each[1] and len(each[2]) == 1]
    assert len(heartbeats) > 3
    last = {key: signatures for key, _, signatures in signed.headers(assignments)}
    assert {b"task/0", MANIFEST_KEY.encode(), CONTROLLER_KEY} <= last.keys()
    assert all(len(signatures) == 1 for signatures in last.values())
    _, value, (signature,) = heartbeats[0]
    refused: list[tuple[bytes | None, str]] = []
    taken: list[bytes | None] = []
    files = signed.keys.options("router")
    records = RecordSecurity(
        certificate=str(files["tls_certificate"]),
        key=str(files["tls_key"]),
        ca=str(files["tls_ca"]),
        crl=str(files["tls_crl"]),
        rules=str(files["security_rules"]),
    )
    broken: list[Exception] = []
    reader = ControlLogReader(
        Brokers(signed.bootstrap, records=records),
        members,
        lambda key, _value, _timestamp_ms: taken.append(key),
        client_id="tests",
        on_broken=broken.append,
        on_refused=lambda key, error: refused.append((key, str(error))),
    )
    reader.start()
    assert reader.wait_caught_up(20)
    assert {b"n1", b"n2"} <= set(taken)
    known = signed.members()
    signed.write((members, b"n1", value, signature))
    poll_until(lambda: any("written it again" in error for _, error in refused), 20, "it to be read, and refused")
    reader.stop()
    assert not broken
    assert signed.members() == known
    assert all(process.is_running for process in signed.processes)


def test_a_member_that_does_not_sign_is_taken_and_named_until_that_is_refused(signed: Signed) -> None:
    """Like a member of a version that doesn't sign, next to some that do, at a router that takes unsigned records."""
    tolerant = signed.router("tolerant", **signed.keys.options("router"))
    poll_until(lambda: "router is ready" in tolerant.log, 60, "the router")
    assert signed.members().keys() <= signed.members(tolerant).keys()
    topic = members_topic(signed.application_id)
    old = members_pb2.Member(
        instance_id="old", incarnation="0f", host=LOOPBACK, port=1, state="RUNNING", started_at_ms=1, version="0.2.0"
    )

    def is_a_member() -> bool:
        old.heartbeat += 1
        signed.write((topic, b"old", old.SerializeToString(), None))
        return signed.members(tolerant).get("old") == f"{LOOPBACK}:1"

    poll_until(is_a_member, 30, "the old member")
    named = [line for line in tolerant.log.splitlines() if "without a signature" in line and "old" in line]
    assert len(named) == 1, "each is named, and once"
    poll_until(lambda: "require_signed_records" in signed.way_in.log, 20, "the record to be refused elsewhere")
    assert "old" not in signed.members()
    for key, value in ENTRIES.items():
        assert signed.way_in.get(key, active_only=True).value.text == value
    tolerant.stop()
    signed.processes.remove(tolerant)


def test_a_controller_with_another_certificate_signs_the_assignment_anew(signed: Signed) -> None:
    """Else its records would rest on a certificate that is revoked after the change."""
    before, epoch = signed.keys.rotate("processor"), signed.epoch()
    assert signed.assignment_signers() == {before.der}
    newer = {signed.keys.issued["processor"].der}
    poll_until(lambda: signed.assignment_signers() == newer, 60, "all records to be signed with the newer certificate")
    poll_until(lambda: signed.epoch() > epoch, 30, "the router to act on them")
    signed.revoke(before)
    late = signed.router("late", **signed.keys.options("router"), require_signed_records=True)
    poll_until(lambda: "router is ready" in late.log, 60, "a router that starts now")
    for key, value in ENTRIES.items():
        assert late.get(key, active_only=True).value.text == value
    late.stop()
    signed.processes.remove(late)
