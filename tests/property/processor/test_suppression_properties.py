"""A suppress buffer against a plain model of Kafka Streams': a list that is looked through after each record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.operators.suppression import Buffer, BufferedUpdate, KeyUpdate, TimeLimit, WhenFull, pass_on, size_of
from statehouse.errors import ConfigurationError

_BATCHES = st.lists(
    st.lists(
        st.builds(
            KeyUpdate,
            key=st.sampled_from("abcdef"),
            row=st.text("xyz", max_size=4),
            timestamp_ms=st.integers(0, 60),
            since_ms=st.none(),
        ),
        max_size=12,
    ),
    max_size=6,
)
_BOUNDS = st.one_of(st.none(), st.integers(1, 5)), st.one_of(st.none(), st.integers(1, 20))


class Model:
    """The buffer, as one would write it; what passes goes to `passed`."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self._now = 0
        self.waiting: dict[str, tuple[int, str]] = {}
        self.passed: list[tuple[str, str]] = []

    def take(self, change: KeyUpdate) -> None:
        assert change.timestamp_ms is not None
        self._now = max(self._now, change.timestamp_ms)
        first, _ = self.waiting.get(change.key, (change.timestamp_ms, ""))
        self.waiting[change.key] = (first, change.row)
        while self.waiting:
            key, (since, row) = min(self.waiting.items(), key=lambda item: (item[1][0], item[0]))
            is_due = self._now - since >= self._limit.wait.total_seconds() * 1000
            if not is_due and not (self._is_full() and self._limit.buffer.when_full is WhenFull.EMIT_EARLY):
                break
            del self.waiting[key]
            self.passed.append((key, row))
        if self._is_full():
            raise ConfigurationError("full")

    def _is_full(self) -> bool:
        size = sum(len(key) + len(row) for key, (_, row) in self.waiting.items())
        buffer = self._limit.buffer
        return len(self.waiting) > (buffer.max_records or 99) or size > (buffer.max_bytes or 999)


@pytest.mark.feature("suppress-until-window")
@given(batches=_BATCHES, records=_BOUNDS[0], size=_BOUNDS[1], when=st.sampled_from(WhenFull), wait=st.integers(0, 30))
def test_a_batch_gives_what_the_records_one_by_one_would(
    batches: list[list[KeyUpdate]], records: int | None, size: int | None, when: WhenFull, wait: int
) -> None:
    limit = TimeLimit(timedelta(milliseconds=wait), Buffer(records, size, when))
    model, held, stream_ms = Model(limit), dict[str, BufferedUpdate](), 0
    for batch in batches:
        model.passed.clear()
        try:
            for change in batch:
                model.take(change)
        except ConfigurationError:
            with pytest.raises(ConfigurationError, match="full"):
                pass_on(held, stream_ms, batch, limit)
            return
        passed, held, stream_ms = pass_on(held, stream_ms, batch, limit)
        last = {key: place for place, (key, _) in enumerate(model.passed)}
        assert passed == [model.passed[place][1] for place in sorted(last.values())]
        assert held == {key: BufferedUpdate(*waiting) for key, waiting in model.waiting.items()}
        assert size_of(held) == sum(len(key) + len(row) for key, (_, row) in model.waiting.items())
