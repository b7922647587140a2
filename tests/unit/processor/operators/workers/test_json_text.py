import json

import pytest

from processor.operators.workers.json_text import compact_json
from statehouse.serdes.json_documents import read_json


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
def test_of_what_json_cannot_say_the_sink_makes_a_dead_letter(number: float):
    text = compact_json([number])
    with pytest.raises(ValueError, match="JSON"):
        read_json(text.encode())
