"""`statehouse verify` against nodes that tests fill: what it names, when it asks again, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli import verification
from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.contract.moments import MomentToken
from statehouse.contract.store_sums import SumBounds
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from tests.support.recorded_fleet import RecordedFleet, RecordedNode, recorded_fleet

MOMENT = MomentToken({"scores": 6})


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedFleet]:
    """A fleet whose store has two running replicas of its first partition."""
    monkeypatch.setattr(verification, "_AGAIN_S", 0.01)
    with recorded_fleet() as fleet:
        partition = fleet.router.partitions["boards"][0]
        before = partition.replicas[1].state
        partition.replicas[1].state = "running"
        partition.route.standbys.add(instance_id="node-b")
        yield fleet
        partition.replicas[1].state = before
        del partition.route.standbys[:]


def run(fleet: RecordedFleet, *options: str) -> tuple[Result, Any]:
    command = ["verify", "boards", "--partition", "0", "--router", fleet.router.target, "-o", "json", *options]
    result = CliRunner().invoke(app, command)
    return result, json.loads(result.stdout) if result.stdout else None


def names_of(fleet: RecordedFleet) -> str:
    result = CliRunner().invoke(
        app, ["verify", "boards", "--partition", "0", "--router", fleet.router.target, "-o", "name"]
    )
    return result.stdout.rstrip("\n")


def named(document: Any) -> list[tuple[str, str, str]]:
    return [(each["replica"], each["key"], each["wrong"]) for each in document["differences"]]


def nodes_of(fleet: RecordedFleet) -> tuple[RecordedNode, RecordedNode]:
    return fleet.nodes["node-a"], fleet.nodes["node-b"]


def test_equal_copies_are_equal(fleet: RecordedFleet) -> None:
    result, document = run(fleet)
    assert (result.exit_code, document["differences"]) == (0, [])
    assert [(each["copy"], each["entries"], each["result"]) for each in document["copies"]] == [
        ("log", 3, "equal"),
        ("node-a", 3, "equal"),
        ("node-b", 3, "equal"),
    ]
    first, second = nodes_of(fleet)
    assert [each.of_log for each in second.sums].count(True) == 1, "the log is replayed where no active is"
    assert not any(each.of_log for each in first.sums)
    exact = [each for each in (*first.sums, *second.sums) if not each.of_log]
    assert all(each.moment.exactly == MOMENT.to_proto() for each in exact)


def test_what_differs_is_named(fleet: RecordedFleet) -> None:
    _, second = nodes_of(fleet)
    second.stored = {b"player-1": bytes(8) + b"wrong", b"player-2": second.stored[b"player-2"], b"more": bytes(8)}
    result, document = run(fleet)
    assert result.exit_code == ExitCode.ERROR
    assert named(document) == [
        ("node-b", "more", "extra"),
        ("node-b", "player-0", "missing"),
        ("node-b", "player-1", "wrong value"),
    ]
    assert {each["copy"]: each["result"] for each in document["copies"]} == {
        "log": "right",
        "node-a": "right",
        "node-b": "3 entries differ",
    }


def test_without_the_log_nobody_is_right_of_two(fleet: RecordedFleet) -> None:
    nodes_of(fleet)[1].stored.pop(b"player-0")
    result, document = run(fleet, "--no-log")
    assert result.exit_code == ExitCode.ERROR
    assert named(document) == [("node-a", "player-0", "differs"), ("node-b", "player-0", "differs")]


def test_all_replicas_may_be_wrong(fleet: RecordedFleet) -> None:
    for node in nodes_of(fleet):
        node.stored.pop(b"player-0")
    result, document = run(fleet)
    assert result.exit_code == ExitCode.ERROR
    assert named(document) == [("node-a", "player-0", "missing"), ("node-b", "player-0", "missing")]


@pytest.mark.parametrize("reason", sorted(verification.PASSING, key=lambda each: each.name))
def test_what_passes_is_tried_again(fleet: RecordedFleet, reason: Reason) -> None:
    nodes_of(fleet)[1].sum_failures = [LookupFailure(reason, "not now"), LookupFailure(reason, "not now")]
    result, document = run(fleet)
    assert (result.exit_code, document["differences"]) == (0, [])


def test_what_does_not_pass_is_no_difference(fleet: RecordedFleet) -> None:
    failure = LookupFailure(Reason.PARTITION_RESTORING, "task 0_0 is restoring")
    nodes_of(fleet)[1].sum_failures = [failure] * 10_000
    result, document = run(fleet, "--patience", "0.1")
    assert result.exit_code == ExitCode.UNAVAILABLE
    assert document["differences"] == []
    (row,) = document["copies"]
    assert row["result"].startswith("could not be checked: PARTITION_RESTORING: node-b (")


def test_what_never_passes_ends_it(fleet: RecordedFleet) -> None:
    nodes_of(fleet)[1].sum_failures = [LookupFailure(Reason.WRONG_STORE_KIND, "boards is a window store")]
    result, document = run(fleet)
    assert (result.exit_code, document) == (ExitCode.USAGE, None)


def test_entries_are_listed_of_a_later_moment_if_the_first_is_gone(fleet: RecordedFleet) -> None:
    first, second = nodes_of(fleet)
    second.stored.pop(b"player-0")
    begun = first.SumStore

    def sum_once(request: Any, context: Any) -> Any:
        if request.listed and not first.sum_failures and not any(each.listed for each in first.sums):
            first.sum_failures = [LookupFailure(Reason.MOMENT_GONE, "batch 6 is not kept")]
        return begun(request, context)

    first.SumStore = sum_once  # type: ignore[method-assign] # looked up at each call
    result, document = run(fleet)
    assert (result.exit_code, named(document)) == (ExitCode.ERROR, [("node-b", "player-0", "missing")])


@pytest.mark.parametrize("expires_more", ["log", "replica"])
def test_all_copies_expire_as_the_one_that_has_seen_the_latest_time(fleet: RecordedFleet, expires_more: str) -> None:
    nodes = nodes_of(fleet)
    for node in nodes:
        node.bounds = SumBounds(2_000 if expires_more == "replica" and node is nodes[0] else 1_000, -1)
        node.logged_bounds = SumBounds(3_000 if expires_more == "log" else 500, 70)
    result, document = run(fleet)
    assert (result.exit_code, document["differences"]) == (0, [])
    asked = [each for node in nodes for each in node.sums]
    (first,) = (each for each in asked if not each.HasField("bounds"))
    assert first.of_log, "the log says which records it has"
    others = {(each.bounds.stream_time_ms, each.bounds.recorded_from_ms) for each in asked if each.HasField("bounds")}
    assert others == ({(3_000, 70)} if expires_more == "log" else {(500, 70), (2_000, 70)})
    assert len(asked) == (3 if expires_more == "log" else 6)


@pytest.mark.parametrize(
    ("kind", "entry", "named_as", "span"),
    [
        ("window", WindowKey(b"p\x00", 60_000).to_entry_key(), "p\x00@60000", (60_000, None)),
        ("session", SessionKey(b"p\x00", 60_000, 61_000).to_entry_key(), "p\x00@60000-61000", (60_000, 61_000)),
    ],
)
def test_windows_and_sessions_are_named(
    fleet: RecordedFleet, kind: str, entry: bytes, named_as: str, span: tuple[int, int | None]
) -> None:
    fleet.fleet.stores[0].kind = kind
    for node in nodes_of(fleet):
        node.bounds = node.logged_bounds = SumBounds(100_000, -1)
        node.stored, node.logged = {}, {entry: bytes(8) + b"v"}
    nodes_of(fleet)[0].stored = {entry: bytes(8) + b"v"}
    result, document = run(fleet)
    assert result.exit_code == ExitCode.ERROR
    (found,) = document["differences"]
    assert (found["replica"], found["key"], found["key_hex"], found["wrong"]) == ("node-b", "p\x00", "7000", "missing")
    assert (found["start_ms"], found["end_ms"]) == span
    assert all(each.bounds.stream_time_ms == 100_000 for node in nodes_of(fleet) for each in node.sums if each.listed)
    table = CliRunner().invoke(app, ["verify", "boards", "--partition", "0", "--router", fleet.router.target])
    assert "1970-01-01T00:01:00" in table.stdout
    assert ("1970-01-01T00:01:01" in table.stdout) == (kind == "session")
    assert names_of(fleet) == f"node-b/0/{named_as}"


def test_a_wrong_replica_is_restored_and_checked_again(fleet: RecordedFleet) -> None:
    first, second = nodes_of(fleet)
    second.stored.pop(b"player-0")
    states = iter(["error", "restoring", "running"])

    def next_state() -> None:
        second.said.tasks[0].state = next(states, "running")

    second.before_answer = next_state
    result, document = run(fleet, "--restore")
    assert (result.exit_code, named(document)) == (0, [("node-b", "player-0", "missing")])
    assert [(each.store, each.partition) for each in second.restored] == [("boards", 0)]
    assert not first.restored
    assert next(states, None) is None, "it was waited for"
    assert "node-b restores its replica" in result.stderr


def test_a_partition_with_one_copy_is_not_checked(fleet: RecordedFleet) -> None:
    fleet.router.partitions["boards"][0].replicas[1].state = "restoring"
    result, _ = run(fleet, "--no-log", "--patience", "0")
    assert result.exit_code == ExitCode.UNAVAILABLE


def test_a_table_names_what_differs(fleet: RecordedFleet) -> None:
    nodes_of(fleet)[1].stored.pop(b"player-0")
    result = CliRunner().invoke(app, ["verify", "boards", "--partition", "0", "--router", fleet.router.target])
    assert "player-0" in result.stdout
    assert "missing" in result.stdout
    assert result.exit_code == ExitCode.ERROR


def test_a_partition_that_is_not_there(fleet: RecordedFleet) -> None:
    result = CliRunner().invoke(app, ["verify", "boards", "--partition", "9", "--router", fleet.router.target])
    assert result.exit_code == ExitCode.USAGE
