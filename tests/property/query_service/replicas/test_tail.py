"""Tails against a log that is compacted behind their backs: no watcher misses a record without being told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from query_service.replicas.tail import Compaction, Tail
from query_service.stores.base import ChangelogRecord
from query_service.watches.watched_keys import KeySelection, PagePositions

LAG_MS = 1_000
KEYS = [b"a", b"b", b"ab"]
SEGMENT = 3


@dataclass
class Watcher:
    """A cursor that takes what it can get; `seen` since its last gap, at `began`."""

    selection: KeySelection
    cursor: int
    began: int
    seen: list[int] = field(default_factory=list)
    gaps: int = 0


class WatchedLog(RuleBasedStateMachine):
    """A log of segments, cleaned as Kafka cleans it; a follower that reads it in slices; watchers of its tail."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 10_000
        self.end = 0
        self.written: list[ChangelogRecord] = []  # every record there ever was
        self.log: list[ChangelogRecord] = []  # those that compaction left
        self.position = 0
        self.never_cleaned_from = 0
        self.tail = Tail(1_500, Compaction(LAG_MS), 0)
        self.watchers: list[Watcher] = []

    @rule(
        records=st.lists(
            st.tuples(st.sampled_from(KEYS), st.sampled_from([0, 500, 1_001, 1_500, 5_000]), st.booleans()),
            min_size=1,
            max_size=8,
        )
    )
    def write(self, records: list[tuple[bytes, int, bool]]) -> None:
        """Each record: the key, how old its time is, and whether a transaction marker follows."""
        for key, age_ms, has_marker in records:
            record = ChangelogRecord(key, b"%d" % self.end, self.now_ms - age_ms, self.end)
            self.written.append(record)
            self.log.append(record)
            self.end += 1 + has_marker

    @rule(ms=st.sampled_from([1, 500, 950, 3_000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def clean(self) -> None:
        """Kafka's cleaner: segments from the start up to the first with a record younger than the lag; not the last."""
        dirty_end = (max(0, self.end - 1) // SEGMENT) * SEGMENT
        for start in range(0, dirty_end, SEGMENT):
            segment = [record for record in self.written if start <= record.offset < start + SEGMENT]
            if any(record.timestamp_ms > self.now_ms - LAG_MS for record in segment):
                dirty_end = start
                break
        self.never_cleaned_from = dirty_end
        newest = {record.key: record.offset for record in self.log if record.offset < dirty_end}
        self.log = [record for record in self.log if record.offset >= dirty_end or newest[record.key] == record.offset]

    @rule(records=st.integers(1, 6), later=st.integers(0, 6))
    def follow(self, records: int, later: int) -> None:
        """Read a slice, whose last part may have been read within rule 3's time: before it could be cleaned."""
        at_once_from = self.never_cleaned_from + later
        batch = [record for record in self.log if record.offset >= self.position][:records]
        if batch:
            self.position = batch[-1].offset + 1
            self.tail.extend(batch, self.position, self.now_ms, at_once_from=at_once_from)
        else:
            self.position = self.end
            self.tail.extend((), self.position, self.now_ms, at_once_from=at_once_from)

    @rule(
        selection=st.sampled_from([KeySelection(key=b"a"), KeySelection(prefix=b"a"), KeySelection()]),
        back=st.integers(0, 8),
    )
    def begin(self, selection: KeySelection, back: int) -> None:
        if len(self.watchers) < 5:
            at = max(self.tail.start, self.tail.end - back)
            self.watchers.append(Watcher(selection, at, at))

    @precondition(lambda self: self.watchers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        watcher = data.draw(st.sampled_from(self.watchers))
        stretch = self.tail.read(watcher.cursor, data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 500])))
        if stretch is None:
            watcher.cursor = watcher.began = self.tail.end
            watcher.seen.clear()
            watcher.gaps += 1
            return
        watcher.seen += [record.offset for record in stretch.records if watcher.selection.has(record.key)]
        assert stretch.position >= watcher.cursor
        watcher.cursor = stretch.position

    @invariant()
    def nobody_misses_a_record(self) -> None:
        for watcher in self.watchers:
            due = [
                record.offset
                for record in self.written
                if watcher.began <= record.offset < watcher.cursor and watcher.selection.has(record.key)
            ]
            assert watcher.seen == due

    @invariant()
    def it_is_bounded(self) -> None:
        assert self.tail._bytes <= 1_500
        assert len(self.tail._records) <= 2 * 1_500 // 200 + 2


TestWatchedLog = WatchedLog.TestCase
TestWatchedLog.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(
    st.lists(st.tuples(st.sampled_from([b"", b"\0", b"a", b"a\0", b"b", b"\xff"]), st.integers(0, 3)), max_size=30),
    st.integers(1, 3),
)
def test_each_key_goes_forward_only(writes: Sequence[tuple[bytes, int]], page_size: int) -> None:
    """Pages read while records come: with the changes that no page holds, every key sees each record at most once."""
    state: dict[bytes, int] = {}
    snapshot, shown = PagePositions(), dict[bytes, int]()
    after: bytes | None = None
    is_last = False
    for offset, (key, pages) in enumerate(writes):
        for _ in range(pages):
            if not is_last:
                rest = sorted(each for each in state if after is None or each > after)
                is_last = len(rest) <= page_size
                shown |= {each: state[each] for each in rest[:page_size]}
                after = rest[page_size - 1] if not is_last else after
                snapshot.add(None if is_last else after, offset)
        state[key] = offset
    if not is_last:
        return
    for offset, (key, _) in enumerate(writes):
        if offset >= snapshot.first_position and not snapshot.covers(key, offset):
            assert shown.get(key, -1) < offset
            shown[key] = offset
        if offset >= snapshot.last_position:
            assert not snapshot.covers(key, offset)
    assert shown == state


def test_an_uncompacted_log_has_no_losses() -> None:
    records = [ChangelogRecord(b"k", b"", 0, offset) for offset in (3, 7, 20)]
    assert Compaction(None).whole_from(0, records, 10**6) == 0
    assert Compaction(0).whole_from(0, records, 10**6) == 20
    assert Compaction(0).whole_from(3, records[:1], 10**6) == 3


def test_records_read_at_once_are_taken_as_whole() -> None:
    tail = Tail(10_000, Compaction(0), 0)
    tail.extend([ChangelogRecord(b"k", b"", 0, 0), ChangelogRecord(b"k", b"", 0, 2)], 3, 10**6, at_once_from=0)
    assert tail.start == 0
    tail.extend([ChangelogRecord(b"k", b"", 0, 5)], 6, 10**6, at_once_from=6)
    assert tail.start == 5
    assert tail.read(4, 10, 1_000) is None
    tail.extend([ChangelogRecord(b"k", b"", 0, offset) for offset in (7, 9, 11)], 12, 10**6, at_once_from=8)
    assert tail.start == 8


def test_what_was_read_before_a_restart_proves_nothing_of_what_stands_before_it() -> None:
    tail = Tail(10_000, Compaction(1_000), 9)
    tail.extend([ChangelogRecord(b"k", b"", 10**6, 9)], 10, 10**6, at_once_from=10)
    tail.restart(0)
    tail.extend([ChangelogRecord(b"k", b"", 0, 0), ChangelogRecord(b"k", b"", 0, 2)], 3, 10**6, at_once_from=3)
    assert tail.start == 2
