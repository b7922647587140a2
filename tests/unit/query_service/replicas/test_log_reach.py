"""From when on a changelog has all records, by its start and its first record."""

from __future__ import annotations

from typing import Any

import pytest

from query_service.replicas import log_reach
from query_service.replicas.log_reach import ALL_LOST, NOTHING_LOST, LogReach, recorded_from_ms
from statehouse.contract.topology import WINDOW, StoreSpec
from statehouse.errors import LookupFailure, Reason

SPEC = StoreSpec("visits", "shop-visits-changelog", 1, 0, kind=WINDOW, retention_ms=1)


@pytest.mark.parametrize(
    ("first_offset", "first_ms", "found"),
    [(0, None, NOTHING_LOST), (0, 5_000, NOTHING_LOST), (1, None, ALL_LOST), (1, 5_000, 65_000)],
)
def test_a_log_has_all_that_came_after_its_first_record(first_offset: int, first_ms: int | None, found: int) -> None:
    assert recorded_from_ms(first_offset, first_ms) == found


class Broker:
    """A broker, in place of the admin client that asks it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_offset: int, timestamps: str) -> None:
        at = (SPEC.changelog_topic, 0)
        monkeypatch.setattr(log_reach, "RenewedAdmin", lambda _brokers, _client_id: self)
        monkeypatch.setattr(log_reach, "earliest_offsets", lambda _admin, _asked: {at: first_offset})
        monkeypatch.setattr(log_reach, "topic_settings", lambda _admin, _topic: {"message.timestamp.type": timestamps})
        monkeypatch.setattr(log_reach, "first_record_ms", lambda _admin, _topic, _partition: 5_000)

    def ask(self, question: Any) -> Any:
        return question(self)


@pytest.mark.parametrize(
    ("first_offset", "timestamps", "found"),
    [(0, "CreateTime", NOTHING_LOST), (0, "LogAppendTime", NOTHING_LOST), (9, "LogAppendTime", 65_000)],
)
def test_the_broker_is_asked(monkeypatch: pytest.MonkeyPatch, first_offset: int, timestamps: str, found: int) -> None:
    broker: Any = Broker(monkeypatch, first_offset, timestamps)
    assert LogReach(broker, "node-a").recorded_from_ms(SPEC, 0) == found


def test_by_event_times_nobody_knows_what_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker: Any = Broker(monkeypatch, 9, "CreateTime")
    with pytest.raises(LookupFailure, match="has deleted records") as caught:
        LogReach(broker, "node-a").recorded_from_ms(SPEC, 0)
    assert caught.value.reason is Reason.MOMENTS_UNAVAILABLE
