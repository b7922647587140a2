"""What the bank's tests take for torn."""

from __future__ import annotations

from tests.support.bank import ACCOUNTS, BATCH, SUMS, Bank, Seen, group_of, is_balanced, members
from tests.support.bank_batches import ShownBatches
from tests.support.bank_readers import ALL_ACCOUNTS

GROUP = members(1)
OF_GROUP = {ACCOUNTS: GROUP, SUMS: [group_of(GROUP[0])]}


def seen(batch: int, *, after: int | None = None, asked=ALL_ACCOUNTS) -> Seen:
    """Return what a batch shows; with `after` the stores after the first one are as of that batch."""
    bank = Bank(8)
    bank.records(max(batch, after or 0))
    states = {store: bank.states[batch if store == ACCOUNTS or after is None else after][store] for store in asked}
    shown = {store: {key: states[store][key] for key in keys if key in states[store]} for store, keys in asked.items()}
    return Seen(shown, asked, batch)


def test_pairs_have_their_money_and_groups_their_sum() -> None:
    assert is_balanced(seen(3))
    assert is_balanced(seen(3, asked=OF_GROUP))
    assert not is_balanced(seen(3, after=9, asked=OF_GROUP))
    whole = seen(3)
    assert not is_balanced(Seen({ACCOUNTS: {**whole.shown[ACCOUNTS], "5": -1}}, whole.asked))


def test_what_was_not_asked_for_as_a_whole_is_not_judged() -> None:
    assert is_balanced(Seen({ACCOUNTS: {"4": 170}}, {ACCOUNTS: ["4"]}))
    assert is_balanced(Seen({SUMS: {group_of("4"): 17, BATCH: 3}}, {SUMS: [group_of("4"), BATCH]}))


def test_two_answers_of_a_batch_are_alike() -> None:
    batches = ShownBatches()
    assert batches.add(seen(3))
    assert batches.add(seen(4))
    assert batches.add(seen(4, asked=OF_GROUP))
    assert batches.newest == 4
    other = seen(3)
    assert is_balanced(other)
    assert not batches.add(Seen(other.shown, other.asked, 4))
    assert batches.add(Seen(other.shown, other.asked)), "it names no batch"


def test_what_a_batch_shows_is_what_the_changelogs_have_of_it() -> None:
    batches = ShownBatches()
    asked = {ACCOUNTS: ["1", "2", "3"]}
    for batch, shown in ((2, {"1": 5}), (3, {"1": 5, "2": 7}), (5, {"2": 7, "3": 9})):
        batches.add(Seen({ACCOUNTS: shown}, asked, batch))
    one, two, three = ((ACCOUNTS, key) for key in asked[ACCOUNTS])
    truth = {one: [(1, 5), (4, None)], two: [(3, 7)], three: [(5, 9), (6, 1)]}
    assert not batches.unlike(truth)
    assert batches.unlike({**truth, two: [(4, 7)]}) == ["batch 3, ('accounts', '2'): 7, not None"]
    assert len(batches.unlike({**truth, one: [(1, 5)]})) == 1
