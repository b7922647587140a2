"""Records of control topics that can't be taken: each is counted, and the first of each key logged."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from statehouse.errors import ContractError
from statehouse.observability import unreadable_records
from statehouse.observability.unreadable_records import UnreadableRecords


def test_each_is_counted_and_the_first_of_each_key_logged() -> None:
    registry = CollectorRegistry()
    skipped = UnreadableRecords(registry, "statehouse_node")
    with capture_logs() as logged:
        for topic, key in (("members", b"n1"), ("members", b"n1"), ("members", b"\xff"), ("assignment", "store/x")):
            skipped.note(topic, key, ContractError("it can't be true"))
        skipped.note("commits", None, ContractError("it can't be true"))
    assert [(event["topic"], event["key"]) for event in logged] == [
        ("members", "n1"),
        ("members", "\ufffd"),
        ("assignment", "store/x"),
        ("commits", ""),
    ]
    name = "statehouse_node_unreadable_control_records_total"
    assert registry.get_sample_value(name, {"topic": "members"}) == 3
    assert registry.get_sample_value(name, {"topic": "assignment"}) == 1


def test_who_writes_nonsense_under_ever_new_keys_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unreadable_records, "_LOGGED_MAX", 3)
    registry = CollectorRegistry()
    skipped = UnreadableRecords(registry)
    with capture_logs() as logged:
        for number in range(10):
            skipped.note("members", b"%d" % number, ContractError("it can't be true"))
    assert len(logged) == 3
    assert registry.get_sample_value("statehouse_unreadable_control_records_total", {"topic": "members"}) == 10


def test_what_is_skipped_is_named_although_something_unsigned_was() -> None:
    records = UnreadableRecords()
    with capture_logs() as logged:
        records.unsigned("members", b"n1")
        records.note("members", b"n1", ContractError("somebody else's"))
        records.note("members", b"n1", ContractError("and again"))
    assert [event.get("error") for event in logged] == [None, "somebody else's"]
