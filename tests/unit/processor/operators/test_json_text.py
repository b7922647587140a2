import json

import pytest

from processor.operators.json_text import compact_json


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (4000.0, "4000"),
        (12.5, "12.5"),
        (0.0, "0"),
        (-0.0, "0"),
        (-3.0, "-3"),
        (9007199254740993, "9007199254740993"),
        (1e15, "1000000000000000"),
        (1e16, "1e+16"),
        (0.1, "0.1"),
    ],
)
def test_numbers_have_one_form(number: float, text: str):
    assert compact_json(number) == text
    assert json.loads(text) == number


def test_lists_and_objects_are_compact_and_keep_their_order():
    value = [{"b": 1.0, "a": "Zoë", "c": None, "d": True}]
    assert compact_json(value) == '[{"b":1,"a":"Zoë","c":null,"d":true}]'


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_json_cannot_say_is_refused(number: float):
    with pytest.raises(ValueError, match="JSON"):
        compact_json([number])
