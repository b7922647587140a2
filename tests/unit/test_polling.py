from __future__ import annotations

import pytest

from tests.support.polling import poll_until


def test_returns_the_first_truthy_answer() -> None:
    answers = iter([0, None, "", 7, 8])
    assert poll_until(lambda: next(answers), 5, "a seven") == 7


def test_names_what_it_waited_for_and_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.02 s for a pony; the last answer was \[\]"):
        poll_until(list, 0.02, "a pony")


def test_asks_at_least_once() -> None:
    assert poll_until(lambda: True, 0, "anything")
