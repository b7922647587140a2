"""Documents keep their numbers: as text they are exact, and as protobuf's Value large integers become text."""

from __future__ import annotations

import json
import math
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query_service.reads.fleet_view import ServedStore
from query_service.reads.store_queries import arguments_of
from statehouse.client.conversion import from_query_store, from_value, to_arguments
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES, DocumentSerde, JsonValue, exact_json, from_json_value, json_value
from statehouse.v1 import query_service_pb2

JSON: Final = SERDES["json"]
INTEGERS: Final = st.integers() | st.sampled_from([s * 2**53 + d for s in (1, -1) for d in (-1, 0, 1)])
DOCUMENTS: Final[st.SearchStrategy[Any]] = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


class Documents(DocumentSerde):
    """A plug-in, whose documents may have floats that JSON lacks."""

    def document(self, data: bytes) -> JsonValue:
        found: JsonValue = json.loads(data)
        return found


def told(document: Any) -> str:
    """Return a document with the types of its numbers: 1 is not 1.0, nor "1", nor is 0.0 -0.0."""
    return json.dumps(document, sort_keys=True)


def in_doubles(document: Any) -> Any:
    """Return what a Value makes of a document."""
    match document:
        case bool():
            return document
        case int():
            return document if abs(document) <= 2**53 else str(document)
        case float():
            return int(document) if document.is_integer() and abs(document) <= 2**53 else document
        case list():
            return list(map(in_doubles, document))
        case dict():
            return {name: in_doubles(item) for name, item in document.items()}
        case _:
            return document


@given(DOCUMENTS)
def test_a_document_is_read_as_it_is_written(document: Any) -> None:
    data = json.dumps(document, ensure_ascii=False).encode()
    for serde in (JSON, Documents()):
        value = exact_json(serde).value(data)
        assert told(from_value(value)) == told(document)
    assert exact_json(JSON).value(data).json_text.encode() == data


@given(DOCUMENTS)
def test_a_value_has_large_integers_as_text(document: Any) -> None:
    data = json.dumps(document).encode()
    for serde in (JSON, Documents()):
        assert told(from_value(serde.value(data))) == told(in_doubles(document))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "18446744073709551616",
            "9007199254740993",
            "-9007199254740993",
            "9007199254740992",
            "1.0",
            "1",
            "-0",
            "-0.0",
        ),
        *("1e5", "1E5", "0.1", "5e-324", '"9007199254740993"', "1" + "0" * 400, "[1e308,1]", '{"a":1,"a":2}'),
    ],
)
def test_the_text_is_the_values_own(text: str) -> None:
    assert exact_json(JSON).value(text.encode()).json_text == text
    assert told(from_value(exact_json(JSON).value(text.encode()))) == told(json.loads(text))


def test_floats_that_json_lacks_have_names() -> None:
    data = b'{"a":[NaN,Infinity,-Infinity],"n":9007199254740993}'
    expected = {"a": ["NaN", "Infinity", "-Infinity"], "n": 2**53 + 1}
    assert json.loads(exact_json(Documents()).value(data).json_text) == expected
    assert json.loads(Documents().text(data)) == expected


@pytest.mark.parametrize("serde", [JSON, Documents()], ids=["json", "documents"])
@pytest.mark.parametrize("data", [b"{", b"\xff", b"[" * 1_000 + b"]" * 1_000, b'"\\ud800"', b""])
def test_what_has_no_value_has_no_text(serde: Any, data: bytes) -> None:
    for show in (serde.value, serde.exact, exact_json(serde).value):
        with pytest.raises(ValueError, match=r"."):
            show(data)


@pytest.mark.parametrize("name", ["string", "long", "double", "bytes"])
def test_other_values_are_as_they_were(name: str) -> None:
    assert exact_json(SERDES[name]) is SERDES[name]


def test_a_store_is_shown_as_its_request_asks() -> None:
    served = ServedStore(StoreSpec("s", "t", 1, 0), SERDES["string"], JSON)
    assert served.asked(exact=False) is served
    assert served.asked(exact=True).value_serde.value(b"1.0").json_text == "1.0"
    assert served.asked(exact=True) == served.asked(exact=True).asked(exact=True)


@given(st.dictionaries(st.text(max_size=3), DOCUMENTS, max_size=3))
def test_arguments_and_results_of_queries_are_exact(arguments: dict[str, Any]) -> None:
    fields = to_arguments(arguments)
    assert told(json.loads(fields["arguments_text"])) == told(arguments)
    response = query_service_pb2.QueryStoreResponse(result_text=json.dumps(arguments))
    assert told(from_query_store(response, "s").result) == told(arguments)
    of_before = query_service_pb2.QueryStoreResponse(result=json_value(arguments))
    assert told(from_query_store(of_before, "s").result) == told(in_doubles(arguments))


def test_no_argument_is_a_float_that_json_lacks() -> None:
    with pytest.raises(ValueError, match=r"."):
        to_arguments({"a": math.nan})


def test_an_integer_that_a_float_holds_is_one() -> None:
    assert from_json_value(json_value(2**53)) == 2**53
    assert isinstance(from_json_value(json_value(2**53)), int)


@pytest.mark.parametrize("text", ["{", "[1]", "null", "9007199254740993", "[" * 100_000])
def test_arguments_are_a_json_object(text: str) -> None:
    with pytest.raises(LookupFailure, match="arguments_text") as refused:
        arguments_of(query_service_pb2.QueryStoreRequest(arguments_text=text))
    assert refused.value.reason is Reason.INVALID_REQUEST


def test_a_nodes_queries_get_exact_arguments() -> None:
    exact = query_service_pb2.QueryStoreRequest(**to_arguments({"a": 2**53 + 1}))
    assert arguments_of(exact) == {"a": 2**53 + 1}
    exact.arguments_text = ""
    assert arguments_of(exact) == {"a": str(2**53 + 1)}, "of a client of an earlier version"
