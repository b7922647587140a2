"""A file of states: what it names, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from processor.attach.cli import separated
from processor.attach.columns.mapping import OnEntryError
from processor.attach.columns.timed_keys import EntryKind
from processor.attach.states_file import states_of_file
from statehouse.errors import ConfigurationError

WHOLE = """
[[state]]
checkpoint = "/data/clicks"
store = "totals"
operator = 1
state_store = "default"
key = "upper(user)"
key_serde = "string"
partitions = 4
columns = ["n"]
hide = ["m"]
on_error = "null"
input = "amount DECIMAL(6,2)"
[state.values]
n = "count"
[state.aggregates]
total = "sum(amount)"
mean = "avg(amount)"

[[state]]
checkpoint = "/data/visits"
store = "visits"
state_variable = "total"
as = "window"
"""


@pytest.mark.feature("one-attach-serves")
def test_states_are_named_with_all_that_one_has_as_options(tmp_path: Path) -> None:
    file = tmp_path / "states.toml"
    file.write_text(WHOLE)
    first, second = states_of_file(file)
    assert (first.checkpoint, first.store, first.partitions) == ("/data/clicks", "totals", 4)
    assert (first.state.operator_id, first.state.variable) == (1, None)
    assert list(first.columns.aggregates) == ["total", "mean"], "in their order"
    assert (first.columns.inputs, first.columns.on_error) == ("amount DECIMAL(6,2)", OnEntryError.NULL)
    assert (first.columns.columns, first.columns.hide) == (("n",), ("m",))
    assert (second.state.variable, second.columns.shape) == ("total", EntryKind.WINDOW)
    assert first.form != second.form


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"has no \[\[state\]\]"),
        ("[[state]]\nstore = 's'", r"\[\[state\]\] 1 lacks checkpoint"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\n[[state]]\n", "2 lacks checkpoint and store"),
        ("[[state]]\ncheckpiont = '/c'\nstore = 's'", "'checkpiont' is unknown: do you mean 'checkpoint'"),
        ("[[states]]\n", "'states' is unknown: do you mean 'state'"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\noperator = '0'", "operator must be a whole number"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\noperator = true", "operator must be a whole number"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\noperator = -1", "operator must be at least 0"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\nhide = 'a'", "hide must be a list of texts"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\nas = 'day'", "as 'day': window or session"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\non_error = 'no'", "on_error 'no': dead-letter or null"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\nvalue_serde = 'long'", "takes one value"),
        ("[[state]]\ncheckpoint = '/c'\nstore = 's'\ninput = 'a INT'", "name them, as in --aggregate"),
        ("[[state]\n", "can't be read as TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "states.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=says) as refused:
        states_of_file(file)
    assert str(file) in str(refused.value)


def test_names_are_given_with_commas_or_one_by_one() -> None:
    assert separated(["a, b", "c"]) == ("a", "b", "c")
