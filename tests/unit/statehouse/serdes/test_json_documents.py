"""Every writer and reader of a JSON store judges the cases of the table alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor.sink.store_values import StoreValues
from processor.sink.value_check import with_unreadable_refused
from statehouse.cli.output import jsonable
from statehouse.client.conversion import from_value
from statehouse.serdes import JsonSerde, shown_value
from statehouse.serdes.json_documents import named, read_json
from statehouse.v1 import types_pb2
from statehouse.web.api import json_text
from tests.support.json_cases import JSON_CASES, JsonCase

JSON = JsonSerde()


def written(data: bytes) -> None:
    rows = pa.table(
        {
            "_output": pa.array([0], pa.int32()),
            "key": pa.array([b"k"], pa.binary()),
            "value": pa.array([data], pa.binary()),
            "reason": pa.array([None], pa.string()),
            "detail": pa.array([None], pa.string()),
        }
    )
    judged = with_unreadable_refused(rows, [StoreValues("s", "json")])
    if (reason := judged["reason"][0].as_py()) is not None:
        assert reason == "unreadable_value"
        detail = judged["detail"][0].as_py()
        assert "store 's', key 'k'" in detail
        raise ValueError(detail)


JUDGES: dict[str, Callable[[bytes], Any]] = {
    "writer": written,
    "node": JSON.value,
    "node, as text": JSON.exact,
    "HTTP": json_text.document,
    "client": lambda data: from_value(JSON.exact(data)),
    "key": lambda data: JSON.parse(data.decode()),
}


@pytest.mark.parametrize("judge", JUDGES)
@pytest.mark.parametrize("case", JSON_CASES, ids=lambda case: case.name)
def test_all_judge_alike(case: JsonCase, judge: str) -> None:
    if case.refused:
        with pytest.raises(ValueError, match=f"(?s).*{case.refused}"):
            JUDGES[judge](case.data)
    else:
        JUDGES[judge](case.data)


@pytest.mark.parametrize("case", [case for case in JSON_CASES if not case.refused], ids=lambda case: case.name)
def test_all_show_the_same_document(case: JsonCase) -> None:
    document = json.loads(case.data) if case.document is None else case.document
    seen = {
        "judge": read_json(case.data),
        "client": from_value(JSON.exact(case.data)),
        "HTTP": json.loads(json_text.encode(json_text.document(case.data))),
        "command line": json.loads(json.dumps(jsonable(from_value(JSON.exact(case.data))), allow_nan=False)),
    }
    assert seen == dict.fromkeys(seen, document)


@pytest.mark.parametrize("case", [case for case in JSON_CASES if case.refused], ids=lambda case: case.name)
def test_among_others_what_is_none_is_shown_as_its_bytes(case: JsonCase) -> None:
    assert shown_value(JSON, case.data, raw=False) == types_pb2.Value(raw=case.data)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_the_bytes_all_judge_alike(data: bytes) -> None:
    def judged(judge: Callable[[bytes], Any]) -> bool:
        try:
            judge(data)
        except ValueError:
            return False
        return True

    assert len({judged(judge) for judge in JUDGES.values()}) == 1


@pytest.mark.parametrize(
    ("number", "shown"), [(1.5, 1.5), (float("nan"), "NaN"), (float("inf"), "Infinity"), (-float("inf"), "-Infinity")]
)
def test_numbers_that_json_lacks_are_named_everywhere(number: float, shown: object) -> None:
    assert named(number) == shown
    assert jsonable({"value": [number]}) == {"value": [shown]}
    assert json.loads(json_text.encode({"value": number})) == {"value": shown}
