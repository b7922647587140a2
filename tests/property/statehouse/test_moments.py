"""Moments: what is kept follows from batch ids alone, and what is shown is never another batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.batch_cuts import DENSE, batch_in, covers, header_value, is_kept, is_state_of
from statehouse.contract.committed_moments import Chosen, CommittedMoments, KnownMoments, Missed, chosen
from statehouse.contract.moment_leases import AGE_MAX_MS, LEASE_MS, LEASED_MAX, WANTED_MAX, KeptState, staying
from statehouse.contract.moments import NONE, Asked, MomentBound, MomentToken, again, bound_of_texts
from statehouse.control.v1 import commits_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import types_pb2
from tests.support.moments import HEADER_VECTORS

BATCHES = st.integers(0, 700)
TOKENS = st.builds(MomentToken, st.dictionaries(st.text(max_size=5), st.integers(0, 2**62), max_size=4))


@given(st.integers(0, 2**62))
def test_a_header_comes_back(batch_id: int) -> None:
    assert batch_in([("other", b"\x01"), ("b", header_value(batch_id))]) == batch_id


@pytest.mark.parametrize(("batch_id", "value"), HEADER_VECTORS)
def test_a_header_has_a_varint(batch_id: int, value: str) -> None:
    assert header_value(batch_id).hex() == value
    assert batch_in([("b", bytes.fromhex(value))]) == batch_id


@pytest.mark.parametrize("damaged", [b"", b"\x80", b"\x01\x01", b"\x80" * 10, None])
def test_a_damaged_header_names_no_batch(damaged: bytes | None) -> None:
    assert batch_in([("b", damaged)]) == batch_in([]) == batch_in(None) == NONE


@given(BATCHES, st.integers(0, 300), st.integers(0, 300))
def test_what_is_kept_once_is_kept_until_it_goes(batch_id: int, age: int, more: int) -> None:
    newest = batch_id + age
    assert is_kept(batch_id, newest) or not is_kept(batch_id, newest + more)
    assert is_kept(batch_id, newest) == (age < DENSE or (batch_id % 16 == 0 and age < 288))


@given(BATCHES, st.integers(-2, 80), st.integers(0, 400))
def test_a_state_stays_as_long_as_a_batch_of_it(first: int, length: int, age: int) -> None:
    last = first + length
    newest = last + age
    assert covers(first, last, newest) == any(is_kept(each, newest) for each in range(first, last + 1))


@given(TOKENS, TOKENS)
def test_tokens_come_back_and_the_newer_one_counts(one: MomentToken, other: MomentToken) -> None:
    assert MomentToken.parse(str(one)) == one
    assert MomentToken.from_proto(one.to_proto()) == one
    both = one | other
    assert both | one == both == other | one
    for asked in Asked:
        bound = MomentBound(asked, MomentToken() if asked is Asked.NEWEST else one, wait_ms=7)
        assert MomentBound.from_proto(bound.to_proto()) == bound


@pytest.mark.parametrize(
    "message",
    [
        types_pb2.MomentBound(),
        types_pb2.MomentBound(exactly=types_pb2.Moments(moments=[types_pb2.Moment(query_id="q", batch_id=-1)])),
        types_pb2.MomentBound(
            at_least=types_pb2.Moments(moments=[types_pb2.Moment(query_id=str(n)) for n in range(101)])
        ),
    ],
)
def test_what_names_nothing_or_too_much_is_refused(message: types_pb2.MomentBound) -> None:
    with pytest.raises(ValueError, match=r"moment|batch"):
        MomentBound.from_proto(message)


@pytest.mark.parametrize("text", ["?", "abc", str(MomentToken({"q": 1}))[:-3]])
def test_a_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a moment"):
        MomentToken.parse(text)


@given(TOKENS.filter(bool))
def test_what_people_write_is_a_bound(token: MomentToken) -> None:
    assert bound_of_texts(None, None) is None
    assert bound_of_texts("newest", None) == MomentBound()
    assert bound_of_texts(str(token), None) == MomentBound(Asked.EXACTLY, token)
    assert (
        bound_of_texts(None, str(token)) == bound_of_texts("newest", str(token)) == MomentBound(Asked.AT_LEAST, token)
    )
    for wrong in ((str(token), str(token)), ("", None), (None, ""), ("?", None)):
        with pytest.raises(ValueError, match="moment"):
            bound_of_texts(*wrong)


def committed(
    batch_id: int, ends: Mapping[int, int], query_id: str = "q", *, is_moment: bool = True
) -> commits_pb2.Commit:
    """Return a record of the commits topic."""
    return commits_pb2.Commit(
        store="s",
        query_id=query_id,
        batch_id=batch_id,
        is_moment=is_moment,
        changelog_ends=[commits_pb2.TopicOffset(topic="t", partition=each, offset=end) for each, end in ends.items()],
    )


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.data())
def test_what_is_shown_is_the_batch_that_was_asked_for(sizes: list[int], data: st.DataObject) -> None:
    """A log of batches of so many records, each followed by a marker if it has any; a replica that kept all of it."""
    moments = CommittedMoments()
    log: list[int | None] = []
    ends: list[int] = []
    for batch_id, size in enumerate(sizes):
        log += [batch_id] * size
        ends.append(len(log))
        log += [None] if size else []
        moments.take(committed(batch_id, {0: ends[-1]}))
    position = data.draw(st.integers(0, len(log)))

    def shows(batch_id: int, end: int) -> bool:
        assert end <= position
        return any(is_state_of(*span, batch_id, end) for span in spans(log[:position]))

    least = data.draw(st.integers(0, len(sizes) + 1))
    asked = data.draw(st.sampled_from(Asked))
    bound = MomentBound(asked, MomentToken() if asked is Asked.NEWEST else MomentToken({"q": least}))
    found = chosen(bound, moments.of("s"), "s", 0, position, shows)
    reached = [batch_id for batch_id, end in enumerate(ends) if end <= position]
    if asked is Asked.EXACTLY:
        wanted = [least] if least in reached else []
    else:
        wanted = [each for each in reached if asked is Asked.NEWEST or each >= least][-1:]
    if wanted:
        assert found == Chosen("q", wanted[0], ends[wanted[0]])
    else:
        assert isinstance(found, Missed)
        assert found.passes
        assert found.failure.reason is Reason.MOMENT_NOT_REACHED


def spans(log: Sequence[int | None]) -> list[tuple[int, int, int]]:
    """Return what a replica keeps that has read a log: the batch of the newest record, and its interval of offsets."""
    found, last, lo = [], NONE, 0
    for offset, batch_id in enumerate(log):
        if batch_id is None:
            continue
        if batch_id != last:
            found.append((last, lo, offset))
        last, lo = batch_id, offset + 1
    return [*found, (last, lo, len(log))]


def test_an_end_that_is_too_late_shows_no_other_batch() -> None:
    """A driver that a successor has not fenced yet may be in the next batch when an end is asked for."""
    assert not is_state_of(5, 10, 12, 4, 11)
    assert is_state_of(4, 10, 12, 4, 11)
    assert is_state_of(3, 10, 12, 4, 11)
    assert not is_state_of(NONE, 10, 12, 4, 11)
    assert is_state_of(NONE, 0, 12, 4, 11)


def test_a_checkpoint_that_begins_anew_forgets_what_was() -> None:
    moments = CommittedMoments()
    moments.take(committed(7, {0: 3}))
    moments.take(committed(7, {0: 9}))
    assert moments.of("s").end(7, 0) == 3
    moments.take(committed(8, {0: 4}, is_moment=False))
    assert moments.of("s").newest == 7
    for later in (committed(2, {0: 1}), committed(9, {0: 1}, "other")):
        moments.take(later)
        assert moments.of("s").end(7, 0) is None
    moments.take(committed(1, {0: 1}, "third", is_moment=False))
    with pytest.raises(LookupFailure, match="has not said yet"):
        moments.of("s")
    moments.forget("s")
    with pytest.raises(LookupFailure, match="nothing has been committed"):
        moments.of("s")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5), st.data())
def test_parts_agree_unless_one_is_far_behind(shown: list[int], data: st.DataObject) -> None:
    found: list[int | None] = list(shown)
    keeps = data.draw(st.lists(st.booleans(), min_size=len(found), max_size=len(found)))
    step = again(found)
    if step is None:
        assert len(set(found)) == 1
        return
    assert step.exactly
    assert step.batch_id == min(shown)
    answered = [
        (step.batch_id if keeps[part] else None) if part in step.parts else batch_id
        for part, batch_id in enumerate(found)
    ]
    then = again(answered, max(shown))
    if None in answered:
        assert then is not None
        assert not then.exactly
        assert then.batch_id == max(shown)
        assert len(then.parts) == len(found)
    else:
        assert then is None


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(1, 400))
def test_a_batch_that_reads_name_is_known_for_as_long_as_they_do(gaps: list[int], walked: int) -> None:
    known, end = KnownMoments("q"), 0
    for batch_id in range(1_500):
        end += gaps[batch_id % len(gaps)] if gaps else 0
        known.add(batch_id, {0: end})
        if batch_id >= walked and batch_id % 50 == 0:
            assert known.end_named(walked, 0) is not None
        assert len(known.batches) <= 512
    assert known.end(987, 0) is None
    assert known.end(988, 0) is not None
    of_walk = known.end(walked, 0)
    assert of_walk is not None
    following = known.end_after(of_walk, 0)
    # Where batches are forgotten nobody says that none ended right behind it.
    assert following is None or following == of_walk + 1 or following <= known.batches[0][1][0]
    for batch_id in range(1_500, 1_500 + 800):
        known.add(batch_id, {0: end})
    assert known.end(walked, 0) is None, "its walk is over"


def test_of_many_walks_those_whose_pages_come_are_known() -> None:
    known = KnownMoments("q")
    for batch_id in range(2_000):
        known.add(batch_id, {0: batch_id})
        known.end_named(batch_id, 0)  # as most reads do, once
        if batch_id >= 40:
            for walked in range(40):
                known.end_named(walked, 0)
    assert sum(known.end(each, 0) == each for each in range(40)) == 16
    assert sum(known.end(each, 0) is not None for each in range(40, 2_000)) == 512


def kept_states() -> st.SearchStrategy[list[KeptState]]:
    """Moments in the order of time: the first one is the oldest."""
    one = st.builds(KeptState, st.booleans(), st.integers(0, 2 * AGE_MAX_MS), st.integers(-1, 2 * LEASE_MS), st.just(0))

    def in_order(states: list[KeptState]) -> list[KeptState]:
        ages = sorted((each.age_ms for each in states), reverse=True)
        return [
            KeptState(each.is_wanted, age_ms, min(each.idle_ms, age_ms), (len(states) - place) * 10)
            for place, (each, age_ms) in enumerate(zip(states, ages, strict=True))
        ]

    return st.lists(one, max_size=100).map(in_order)


@given(kept_states(), st.integers(0, 1_000))
def test_a_lease_outlasts_ids_and_age_within_the_bounds(kept: list[KeptState], max_bytes: int) -> None:
    stay = staying(kept, max_bytes)
    staying_ones = [each for each, stays in zip(kept, stay, strict=True) if stays]
    gone = [each for each, stays in zip(kept, stay, strict=True) if not stays]
    assert all(each.written <= max_bytes for each in staying_ones), "a lease is no right to more bytes"
    assert len(staying_ones) <= WANTED_MAX + LEASED_MAX
    leased = [each for each in staying_ones if not each.is_wanted or each.age_ms >= AGE_MAX_MS]
    assert all(0 <= each.idle_ms < LEASE_MS for each in leased)
    refused = [each for each in gone if 0 <= each.idle_ms < LEASE_MS and each.written <= max_bytes]
    if refused:
        assert len(staying_ones) >= LEASED_MAX
        assert not leased or min(map(used, leased)) >= max(map(used, refused)) or len(staying_ones) >= WANTED_MAX
    if sum(each.is_wanted for each in kept) <= WANTED_MAX:
        assert not any(each.is_wanted and each.age_ms < AGE_MAX_MS and each.written <= max_bytes for each in gone), (
            "leases take no place of those that ids name"
        )


def used(state: KeptState) -> int:
    return state.used_ms


@pytest.mark.parametrize("batch_ms", [50, 100, 1_000, 10_000])
def test_a_walk_whose_pages_come_keeps_its_moment_whatever_others_read(batch_ms: int) -> None:
    """Others read each moment as soon as it is there, and for a second. Routers read the walk's once a second."""
    taken: dict[int, int] = {}
    read: dict[int, int] = {}
    walked, lasts_ms = 3, 20 * 60_000
    for batch_id in range(lasts_ms // batch_ms):
        now_ms = batch_id * batch_ms
        taken[batch_id] = now_ms
        read |= {each: now_ms for each in taken if now_ms - taken[each] <= 1_000}
        if (now_ms - taken[walked] if walked in taken else 0) % 1_000 < batch_ms:
            read[walked] = now_ms
        states = [
            KeptState(is_kept(each, batch_id), now_ms - taken[each], now_ms - read[each] if each in read else -1, 0)
            for each in taken
        ]
        taken = {each: at for (each, at), stays in zip(taken.items(), staying(states, 1), strict=True) if stays}
        assert batch_id < walked or walked in taken
        assert len(taken) <= WANTED_MAX + LEASED_MAX


@pytest.mark.parametrize("run", range(20))
def test_ids_name_no_more_than_there_is_room_for(run: int) -> None:
    newest = 1_000 + run
    assert sum(is_kept(each, newest) for each in range(newest)) <= WANTED_MAX
