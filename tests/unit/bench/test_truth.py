"""What is false, torn, doubled or too old is found, each by an answer with that defect alone; tables add it up."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from bench.truth.bank import OPENING, PAIR_TOTAL, PAIRS, Bank, Transfer, pairs
from bench.truth.checks import (
    Ledger,
    Shown,
    Tally,
    age_s,
    count_wrong,
    is_doubled,
    is_falsely_absent,
    is_torn,
)
from bench.truth.play import Batches
from bench.truth.reading import ANSWERED_WITHIN_S, Reader
from bench.truth.schedule import Fault, schedule
from bench.truth.systems.ours import BOUND, is_refusal
from bench.truth.systems.system import BOUND_S, NoAnswer, Pair, Refused
from bench.truth.table import CANT, markdown, table
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import errors_pb2

PAIR: Pair = ("7a", "7b")
WHOLE = Shown((150, 50), (3, 3))


def told(sent: int = 3, *acknowledged: float) -> Ledger:
    """Return a ledger of a pair: transfers sent, and when the source had each."""
    ledger = Ledger()
    transfer = Transfer(7, "7a", "7b", 1)
    for _ in range(sent):
        ledger.send(transfer)
    for at in acknowledged:
        ledger.acknowledge(transfer, at)
    return ledger


def judged(shown: Shown, ledger: Ledger, asked_at: float = 100.0, bound_s: float | None = BOUND_S) -> Tally:
    tally = Tally()
    tally.take(shown, PAIR, ledger, asked_at, bound_s)
    return tally


def test_a_right_answer_has_nothing_wrong() -> None:
    assert judged(WHOLE, told(3, 10.0, 20.0, 30.0)) == Tally(reads=1, too_old=0)


@pytest.mark.parametrize("balances", [(None, PAIR_TOTAL), (PAIR_TOTAL, None)])
def test_a_deleted_account_is_not_missing_where_the_other_has_all(balances: tuple[int | None, int | None]) -> None:
    assert judged(Shown(balances, (3, 3)), told(3)) == Tally(reads=1, too_old=0)


@pytest.mark.parametrize("counters", [(None, 3), (3, None), (None, None)])
def test_a_counter_that_is_not_found_is_falsely_absent_and_nothing_else(
    counters: tuple[int | None, int | None],
) -> None:
    found = judged(Shown((None, None), counters), told(3, 10.0, 20.0, 30.0))
    assert found == Tally(reads=1, absent=1, too_old=0)


@pytest.mark.parametrize(
    "shown",
    [
        Shown((150, 49), (3, 3)),
        Shown((150, 51), (3, 3)),
        Shown((None, 50), (3, 3)),  # deleted too early
        Shown((PAIR_TOTAL, 50), (3, 3)),  # not deleted yet
        Shown((150, 50), (3, 2)),
    ],
)
def test_half_a_transfer_is_torn_and_nothing_else(shown: Shown) -> None:
    assert judged(shown, told(3)) == Tally(reads=1, torn=1, too_old=0)


def test_a_transfer_that_counts_twice_is_found_once_the_counter_is_above_all_that_was_sent() -> None:
    doubled = Shown((150, 50), (4, 4))
    assert judged(doubled, told(3)) == Tally(reads=1, doubled=1, too_old=0)
    assert not is_doubled(doubled, PAIR, told(4))


@pytest.mark.parametrize(("asked_at", "too_old"), [(34.9, 0), (35.1, 1)])
def test_an_answer_is_as_old_as_the_oldest_transfer_that_it_lacks(asked_at: float, too_old: int) -> None:
    lacks_two = told(5, 10.0, 20.0, 25.0, 30.0, 40.0)
    found = judged(WHOLE, lacks_two, asked_at)
    assert found.oldest_s == pytest.approx(asked_at - 30.0)
    assert found == Tally(reads=1, too_old=too_old, oldest_s=found.oldest_s)


def test_what_the_source_had_only_after_the_question_is_not_lacking() -> None:
    assert age_s(WHOLE, PAIR, told(4, 10.0, 20.0, 25.0, 30.0), asked_at=29.0) == 0.0


def test_without_a_bound_no_answer_is_too_old() -> None:
    found = judged(WHOLE, told(4, 10.0, 20.0, 25.0, 30.0), bound_s=None)
    assert found.too_old is None
    assert found.oldest_s == 70.0


def test_in_the_end_each_account_must_be_what_it_is() -> None:
    ledger = told(3)
    balances = {"7a": 150, "7b": 50}
    assert count_wrong({PAIR: WHOLE}, balances, ledger) == 0
    assert count_wrong({PAIR: Shown((150, 50), (3, 2))}, balances, ledger) == 1  # an update was lost
    assert count_wrong({PAIR: Shown((None, 50), (3, 3))}, balances, ledger) == 1
    assert count_wrong({PAIR: Shown((PAIR_TOTAL, 1), (3, 3))}, {"7a": PAIR_TOTAL, "7b": 0}, ledger) == 1  # not deleted


def test_tallies_add_up() -> None:
    one, other = Tally(5, 1, 2, 3, 4, 5, 6, 7.0), Tally(10, 1, 1, 1, 1, 1, None, 2.0)
    assert one + other == Tally(15, 2, 3, 4, 5, 6, 6, 7.0)
    assert (other + other).too_old is None


def test_a_bank_never_gains_or_loses_and_deletes_accounts() -> None:
    named = pairs(4)
    bank, ledger = Bank(named, 1), Ledger()
    for each in (*bank.opened(), *bank.traded(2_000)):
        ledger.send(each)
    assert all(bank.balances[first] + bank.balances[second] == PAIR_TOTAL for first, second in named)
    assert min(bank.balances.values()) == 0
    assert all(ledger.sent(first) == ledger.sent(second) > 1 for first, second in named)
    shown = {
        pair: Shown(
            (bank.balances[pair[0]] or None, bank.balances[pair[1]] or None),
            (ledger.sent(pair[0]), ledger.sent(pair[1])),
        )
        for pair in named
    }
    assert not any(is_torn(each) or is_falsely_absent(each) for each in shown.values())
    assert count_wrong(shown, bank.balances, ledger) == 0


def test_the_accounts_of_a_pair_are_in_different_partitions() -> None:
    named = pairs(4)
    assert len(named) == PAIRS == len({*named})
    assert all(partition_for(first.encode(), 4) != partition_for(second.encode(), 4) for first, second in named)


def test_what_happens_follows_from_the_seed() -> None:
    def texts(seed: int) -> list[str]:
        bank = Bank(pairs(4), seed)
        return [each.text for each in (*bank.opened(), *bank.traded(50))]

    assert texts(1) == texts(1) != texts(2)
    assert texts(1)[0] == f",0a,{OPENING}"
    assert [schedule(each, 1) for each in Fault] == [schedule(each, 1) for each in Fault]
    assert schedule(Fault.KILL, 1) != schedule(Fault.KILL, 2)


def asked(*outcomes: Shown | NoAnswer, bound_s: float | None = None, attempt_s: float = 0.5) -> Reader:
    """Return a reader that has asked once; each attempt takes `attempt_s`, the last outcome comes again and again."""
    now = itertools.count(100.0, attempt_s)
    left = itertools.chain(outcomes, itertools.repeat(outcomes[-1]))

    def read(_pair: Pair, timeout_s: float) -> Shown:
        assert 0 < timeout_s <= ANSWERED_WITHIN_S
        outcome = next(left)
        if isinstance(outcome, NoAnswer):
            raise outcome
        return outcome

    reader = Reader(read, bound_s)
    reader.ask(PAIR, told(3), clock=lambda: next(now))
    return reader


def test_a_lookup_fails_once_no_attempt_has_an_answer_in_time() -> None:
    reader = asked(NoAnswer("nobody is there"))
    assert (reader.tally, reader.said) == (Tally(failed=1), ["nobody is there"])


def test_a_later_attempt_makes_up_for_an_earlier_one() -> None:
    assert asked(NoAnswer("nobody is there"), WHOLE).tally == Tally(reads=1)


def test_a_refusal_is_no_failure() -> None:
    assert asked(Refused("too old"), bound_s=BOUND_S).tally == Tally(refused=1)
    assert asked(Refused("too old"), NoAnswer("no time left"), bound_s=BOUND_S).tally == Tally(refused=1)


def test_ours_refuses_where_a_bound_cannot_be_held() -> None:
    late = errors_pb2.Candidate(reason=errors_pb2.ERROR_REASON_STALENESS_EXCEEDS_BOUND)
    gone = errors_pb2.Candidate(reason=errors_pb2.ERROR_REASON_UNREACHABLE)
    assert is_refusal(LookupFailure(Reason.NO_REPLICA_AVAILABLE, "", candidates=[gone, late]))
    assert is_refusal(LookupFailure(Reason.INPUT_BACKLOG_EXCEEDS_BOUND, ""))
    assert not is_refusal(LookupFailure(Reason.NO_REPLICA_AVAILABLE, "", candidates=[gone]))
    assert (BOUND.max_processor_age_ms or 0) + (BOUND.max_staleness_ms or 0) == 1000 * BOUND_S


@pytest.mark.parametrize("folder", ["", "application/bank/"])
def test_a_checkpoint_tells_batches_that_have_begun_and_that_are_over(tmp_path: Path, folder: str) -> None:
    batches = Batches(tmp_path)
    assert (batches.planned(), batches.committed(), batches.takes_s()) == (-1, -1, 0.0)
    for log, newest in (("offsets", 10), ("commits", 9)):
        (tmp_path / folder / log).mkdir(parents=True)
        for number in range(newest + 1):
            (tmp_path / folder / log / str(number)).write_text("")
    assert (batches.planned(), batches.committed()) == (10, 9)
    assert batches.takes_s() >= 0.0


def record(way: str, fault: Fault, **figures: Any) -> dict[str, Any]:
    plain = Tally(reads=10, **figures).record()
    bounded = None if way == "Redis" else Tally(reads=5, too_old=2, refused=3, failed=1).record()
    return {
        "system": way,
        "way": way,
        "fault": str(fault),
        "seconds": 60.0,
        "wrong_at_the_end": 4,
        "plain": plain,
        "bounded": bounded,
    }


def test_the_table_adds_up_and_has_no_number_for_what_cannot_be_asked() -> None:
    records = [
        record("Redis", Fault.KILL, torn=7, oldest_s=3.21),
        record("Redis", Fault.CUT, absent=1, oldest_s=1.0, failed=2_000),
        record("Statehouse", Fault.KILL, doubled=6),
    ]
    _head, _line, redis, ours = table(records).splitlines()
    assert redis == f"|Redis|20|1|7|0|2,000|{CANT}|{CANT}|3.2 s|8|"
    assert ours == "|Statehouse|15|0|0|6|0|2 of 5|3|0.0 s|4|"
    content = {"command": "c", "commit": "d", "ended_at": "e", "machine": {"cores": 2}, "seed": 1, "records": records}
    page = markdown(content)
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## All faults together",
        "## A serving process killed",
        "## Cut from its source",
    ]
    assert "3 minutes under load" in page
