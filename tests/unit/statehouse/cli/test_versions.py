"""Which versions may be promoted, and which batches of two versions are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
import typer

from statehouse.cli.compare import equal_moments, is_same
from statehouse.cli.promotable import obstacles
from statehouse.cli.versions import kept_ms
from statehouse.client import Client, DescribedMoment, Fleet, InputEnd, ProcessorQuery, Replica, Store, Task
from statehouse.contract.moments import MomentToken
from statehouse.errors import LookupFailure, Reason

STORE = Store("boards", "key-value", "string", "json", "t", 1, 0)
TASK = Task(
    "0_0", "a", ("b",), (), "", (Replica("a", "ACTIVE", "running", 9, 0), Replica("b", "STANDBY", "running", 9, 0))
)
QUERY = ProcessorQuery("boards", ("boards",), False, False, 0, 4, 0, None, input_backlog=3, state="RUNNING")
FLEET = Fleet("app--v2", 1, "", (STORE,), (), (TASK,), (QUERY,))


def restoring() -> Task:
    return replace(TASK, replicas=(Replica("a", "ACTIVE", "restoring", 1, 8), TASK.replicas[1]))


@pytest.mark.parametrize(
    ("fleet", "said"),
    [
        (FLEET, ""),
        (replace(FLEET, stores=()), "no stores"),
        (replace(FLEET, stores=(replace(STORE, not_built=True),)), "not been built"),
        (replace(FLEET, stores=(replace(STORE, name="others"),)), "no store boards"),
        (replace(FLEET, tasks=(replace(TASK, active=None),)), "no active"),
        (replace(FLEET, tasks=(restoring(),)), "not restored by its active"),
        (replace(FLEET, queries=(replace(QUERY, state="FAILED"),)), "query boards"),
        (replace(FLEET, queries=(replace(QUERY, input_backlog=11),)), "11 records"),
        (replace(FLEET, queries=(replace(QUERY, input_backlog=None),)), "unknown records"),
    ],
)
def test_a_version_may_serve_if_it_has_all_and_keeps_up(fleet: Fleet, said: str) -> None:
    found = list(obstacles(fleet, ["boards"], 10))
    assert [said in each for each in found] == [True] * bool(said)


def test_a_global_store_needs_a_copy_and_no_active():
    copy = Task("global/prices", None, (), (), "", (Replica("a", "GLOBAL", "running", 3, 0),))
    assert list(obstacles(replace(FLEET, tasks=(TASK, copy)), [], 10)) == []


@pytest.mark.parametrize(("text", "ms"), [("30s", 30_000), ("1h", 3_600_000), ("7d", 604_800_000), ("0s", 0)])
def test_a_duration_has_a_unit(text: str, ms: int) -> None:
    assert kept_ms(text) == ms


@pytest.mark.parametrize("text", ["", "1", "h", "-1h", "1w"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        kept_ms(text)


class Batches:
    """A client of a router that knows these batches, by store: their ends by topic and partition."""

    def __init__(self, **stores: Mapping[int, Mapping[tuple[str, int], int]]) -> None:
        self._stores = stores

    def describe_moment(self, store: str, moment: MomentToken | None = None) -> DescribedMoment:
        name = store.replace("@", "_")
        known = self._stores[name]
        batch = max(known) if moment is None else moment.batch(name)
        if batch is None or batch not in known:
            raise LookupFailure(Reason.MOMENT_GONE, "gone")
        ends = tuple(InputEnd(topic, part, offset) for (topic, part), offset in known[batch].items())
        return DescribedMoment(MomentToken({name: batch}), ends)


def equal(**stores: Any) -> tuple[int | None, int | None, tuple[str, ...]]:
    found = equal_moments(cast("Client", Batches(**stores)), "s@v1", "s@v2", 0.0)
    return found.first.batch("s_v1"), found.second.batch("s_v2"), found.others


def test_the_newest_batches_with_equal_ends_are_compared():
    one = {3: {("t", 0): 5}, 4: {("t", 0): 7}, 5: {("t", 0): 9}}
    two = {10: {("t", 0): 5}, 11: {("t", 0): 7}, 12: {("t", 0): 8}}
    assert equal(s_v1=one, s_v2=two) == (4, 11, ())


def test_a_batch_that_has_read_nothing_counts_in_place_of_the_one_before():
    one = {3: {("t", 0): 5}, 4: {("t", 0): 7}}
    two = {10: {("t", 0): 5}, 11: {("t", 0): 7}, 12: {("t", 0): 7}}
    assert equal(s_v1=one, s_v2=two) == (4, 12, ())
    assert equal(s_v1=two, s_v2=one) == (12, 4, ())


def test_inputs_that_only_one_version_reads_do_not_count():
    assert equal(s_v1={0: {("t", 0): 5, ("old", 0): 1}}, s_v2={0: {("t", 0): 5}}) == (0, 0, ("old",))


def test_without_such_batches_it_says_so():
    with pytest.raises(LookupFailure) as failed:
        equal(s_v1={0: {("t", 0): 5}}, s_v2={0: {("t", 0): 6}})
    assert failed.value.reason is Reason.MOMENT_NOT_REACHED
    assert "quiet for a moment" in failed.value.message
    with pytest.raises(LookupFailure, match="no topic that both read"):
        equal(s_v1={0: {("t", 0): 5}}, s_v2={0: {("u", 0): 5}})


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (b'{"a":1,"b":2}', b'{"b": 2, "a": 1}', True),
        (b"1", b"1.5", False),
        (b"\xff", b"\xff", True),
        (b"\xff", b"\xfe", False),
        ("text", "other", False),
    ],
)
def test_documents_are_the_same_however_they_are_written(one: Any, two: Any, same: bool) -> None:
    assert is_same(one, two) is same
