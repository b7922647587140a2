"""The thread that follows a query: what it reads after another follower has come in between."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, Mock

from processor.attach.attached_query import AttachedQuery, AttachedStore
from processor.attach.columns.timed_keys import EntryKind
from processor.attach.operators import StateChoice
from processor.attach.reads import Identity, Read, ReadChanges, ReadPlanner, ReadState
from processor.sink.protocol import ForeignClaim


def test_a_batch_whose_partitions_somebody_else_has_claimed_is_not_published(monkeypatch: Any) -> None:
    checkpoint, reads = Mock(), []
    monkeypatch.setattr("processor.attach.attached_query.apart", lambda _shape: [])
    checkpoint.newest_after.return_value = 3
    checkpoint.query_id.return_value = "q"
    store = AttachedStore(Identity("q", "form", "abc"), 2)
    written: list[int] = []

    def sink(_frame: Any, batch_id: int) -> None:
        written.append(batch_id)
        if len(written) == 1:
            raise ForeignClaim("2 partitions are claimed")
        query._stop.set()

    def read(_self: AttachedQuery, read: Read) -> Mock:
        reads.append(read)
        return MagicMock()

    query = AttachedQuery(
        checkpoint,
        Mock(has_changes=True),
        ReadPlanner(),
        store,
        Mock(query="totals"),
        sink,
        choice=StateChoice(),
        shape=EntryKind.PLAIN,
        poll_interval_s=0.01,
    )
    monkeypatch.setattr(AttachedQuery, "_read", read)
    query._run()
    assert query.exception() is None
    assert reads == [ReadChanges(3, 3), ReadState(3)]
    assert store.published == 3
