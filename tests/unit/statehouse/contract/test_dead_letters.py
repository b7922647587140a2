"""What a dead letter says of its source record comes back as it was, whatever the record's headers are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.dead_letters import (
    DeadLetter,
    ReplayNote,
    SourcePlace,
    SourceRecord,
    decode,
    note_headers,
)
from statehouse.errors import ContractError


def letter_headers(
    query: str, reason: str, detail: str, place: tuple[str | None, int | None, int | None], record: SourceRecord | None
) -> list[tuple[str, bytes | None]]:
    """Return the headers of a dead letter as the sink's task writes them."""
    texts = {"query": query, "reason": reason, "detail": detail}
    names = ("source_topic", "source_partition", "source_offset")
    texts |= {name: str(part) for name, part in zip(names, place, strict=True) if part is not None}
    own: list[tuple[str, bytes | None]] = []
    if record is not None:
        texts["source_timestamp"] = str(record.timestamp_ms)
        own = [(f"source_header.{name}", content) for name, content in record.headers]
    return [*((name, text.encode()) for name, text in texts.items()), *own]


CONTENT = st.none() | st.binary(max_size=20)
NAMES = st.text(max_size=20) | st.sampled_from(["reason", "query", "replayed", "source_offset", "source_header.x"])
RECORDS = st.builds(
    SourceRecord, CONTENT, CONTENT, st.lists(st.tuples(NAMES, CONTENT)).map(tuple), st.integers(-1, 2**53)
)
PLACES = st.builds(SourcePlace, st.text(min_size=1), st.integers(0, 2**31), st.integers(0, 2**53))


@pytest.mark.feature("dead-letters-whole")
@given(RECORDS, PLACES, st.text(), st.text(min_size=1), st.text())
def test_a_dead_letter_keeps_its_source_record(
    record: SourceRecord, place: SourcePlace, query: str, reason: str, detail: str
) -> None:
    headers = letter_headers(query, reason, detail, (place.topic, place.partition, place.offset), record)
    letter = decode((1, 7), 99, record.key, record.value, headers)
    assert letter == DeadLetter(1, 7, 99, query, reason, detail, place, record, is_original=True)
    note = decode((1, 8), 100, None, None, note_headers(letter))
    assert note == ReplayNote(1, 7, 100)


def test_a_dead_letter_of_an_earlier_version_has_no_original() -> None:
    headers = [("reason", b"not_json"), ("detail", b""), ("source_topic", b"orders"), ("source_partition", b"3")]
    letter = decode((0, 1), 5, b"k", b"v", [*headers, ("source_offset", b"812")])
    assert letter == DeadLetter(
        0, 1, 5, None, "not_json", "", SourcePlace("orders", 3, 812), SourceRecord(b"k", b"v", (), 0), is_original=False
    )
    assert str(SourcePlace("orders", 3, 812)) == "orders:3:812"


def test_a_row_of_no_record_has_no_source() -> None:
    letter = decode((0, 1), 5, None, b"v", letter_headers("q", "null_key", "", (None, 3, None), None))
    assert isinstance(letter, DeadLetter)
    assert letter.source is None


@pytest.mark.parametrize("headers", [[], [("reason", None)], [("reason", b"r"), ("source_offset", b"x")]])
def test_what_somebody_else_writes_is_no_dead_letter(headers: list[tuple[str, bytes | None]]) -> None:
    with pytest.raises(ContractError):
        decode((0, 1), 5, None, None, headers)
