"""A static topology: any changelog is served, without Spark."""

from __future__ import annotations

import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from processor.ownership.static import StaticTopology
from statehouse.contract.membership import encode_member
from statehouse.contract.topology import changelog_topic, members_topic
from statehouse.errors import ConfigurationError, LookupFailure
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import ServerProcess
from tests.support.kafka import create_topic, produce
from tests.support.members import FakeMember
from tests.support.polling import poll_until

MINUTE = 60_000


@pytest.mark.feature("stores-without-processor")
def test_serves_changelogs_written_by_others(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    app, profiles = unique_name("app"), unique_name("profiles")
    windows = f"{app}-per-minute-changelog"
    create_topic(kafka.bootstrap, profiles, 1, {"cleanup.policy": "compact"})
    create_topic(kafka.bootstrap, windows, 1, {"cleanup.policy": "compact,delete"})
    produce(kafka.bootstrap, profiles, [(b"ann", b'{"age":7}')])
    produce(kafka.bootstrap, windows, [(WindowKey(b"ann", MINUTE).to_bytes(), struct.pack(">q", 3))])
    file = tmp_path / "topology.toml"
    file.write_text(
        f"""
        application_id = "{app}"
        [[stores]]
        name = "profiles"
        changelog_topic = "{profiles}"
        [[stores]]
        name = "per-minute"
        kind = "window"
        value_serde = "long"
        retention_ms = 600000
        window_size_ms = 60000
        """
    )
    common = {"bootstrap": kafka.bootstrap, "heartbeat-interval-ms": 200, "session-timeout-ms": 2000}
    node_port, router_port = free_port(), free_port()
    static = ServerProcess("static", "processor.cli", {"static": file, **common}, 0, tmp_path)
    node_options = {"instance-id": "n1", "application-id": app, "port": node_port, "state-dir": tmp_path / "state"}
    node = ServerProcess("n1", "query_service", node_options | common, node_port, tmp_path)
    router_options = {"application-id": app, "port": router_port, "bootstrap": kafka.bootstrap}
    router = ServerProcess("router", "router", router_options, router_port, tmp_path)
    try:
        for process in (static, node, router):
            process.start()

        request = query_service_pb2.FetchWindowsRequest(store="per-minute", key=types_pb2.Key(text="ann"))

        def windows_found() -> list[query_service_pb2.Window]:
            try:
                found = router.get("ann", store="profiles").found
                return list(router.call(router.query.FetchWindows, request).windows) if found else []
            except LookupFailure:
                return []

        (window,) = poll_until(windows_found, 60, "answers of both stores through the router")
        assert router.get("ann", store="profiles").value.json.struct_value["age"] == 7
        assert (window.start_ms, window.end_ms, window.value.long) == (MINUTE, 2 * MINUTE, 3)
        assert static.stop(signal.SIGTERM) == 0
        assert router.get("ann", store="profiles").found, "serving goes on without it"
    finally:
        for process in (static, node, router):
            process.close()


@pytest.mark.feature("newer-controller-fences")
def test_a_newer_process_fences_the_older_which_says_so(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    app = unique_name("app")
    topic = changelog_topic(app, "scores")
    create_topic(kafka.bootstrap, topic, 1, {"cleanup.policy": "compact"})
    file = tmp_path / "topology.toml"
    file.write_text(f'application_id = "{app}"\n[[stores]]\nname = "scores"')
    options = {"static": file, "bootstrap": kafka.bootstrap}
    older, newer = (ServerProcess(name, "processor.cli", options, 0, tmp_path) for name in ("older", "newer"))
    try:
        older.start()
        poll_until(lambda: "assignment published" in older.log, 60, "the older to publish")
        newer.start()
        poll_until(lambda: "ownership controller started" in newer.log, 60, "the newer to take over")
        # Being fenced is noticed at the next publication: let there be cause for one.
        produce(kafka.bootstrap, members_topic(app), [encode_member(FakeMember("n1").beat())])
        poll_until(lambda: "another controller acts: this one stands by" in older.log, 60, "the older to be fenced")
        assert "another controller of this application has started" in older.log
        poll_until(lambda: "n1 joined" in newer.log, 30, "the newer to publish")
        for process in (older, newer):
            assert process.stop(signal.SIGTERM) == 0
    finally:
        for process in (older, newer):
            process.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "application_id"),
        ('application_id = "a"', "names no store"),
        ('application_id = "a"\n[[stores]]\nkind = "window"', "without a name"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nretention = 1', "unknown retention; there are"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nretention_ms = "1"', "retention_ms must be a int"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nkind = "a heap"', "must be one of"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nkind = "session"', "needs a retention"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nkind = "window"\nretention_ms = 5', "window_size_ms"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nvalue_serde = "Avro"', "name of a plug-in"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nglobal = true', "name the topic of a global store"),
        (
            'application_id = "a"\n[[stores]]\nname = "s"\nchangelog_topic = "t"\nglobal = true\nephemeral = true',
            "one of the two",
        ),
        ('application_id = "a"\n[[stores]]\nname = "s"\nretention_ms = 5', "a key-value store has no retention_ms"),
        ('application_id = "a"\n[[stores]]\nname = "s"\nkind = "windows"', "write 'window'"),
        (
            'application_id = "a"\n[[stores]]\nname = "s"\nkind = "versioned"\nretention_ms = 5\nephemeral = true',
            "can't be ephemeral",
        ),
        ("application_id = ", "can't be read"),
    ],
)
def test_a_file_that_cannot_work_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        StaticTopology.load(file)


@pytest.mark.feature("stores-without-processor")
def test_global_ephemeral_and_custom_stores_are_declared(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(
        """
        application_id = "shop"
        [[stores]]
        name = "products"
        changelog_topic = "products"
        global = true
        [[stores]]
        name = "baskets"
        ephemeral = true
        [[stores]]
        name = "words"
        kind = "word-sketch"
        """
    )
    products, baskets, words = StaticTopology.load(file).stores
    assert (products.is_global, products.changelog_topic) == (True, "products")
    assert (baskets.ephemeral, baskets.changelog_topic) == (True, "shop-baskets-updates")
    assert (words.kind, words.changelog_topic) == ("word-sketch", "shop-words-changelog")
