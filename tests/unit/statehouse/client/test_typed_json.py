"""JSON documents by a type: what fits is there, what doesn't is null where it is."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from statehouse.client.typed_json import typed_by
from statehouse.errors import ConfigurationError

MOMENT = pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("wanted", "document", "expected"),
    [
        (pa.string(), "text", "text"),
        (pa.string(), {"a": [1, None]}, '{"a":[1,null]}'),
        (pa.string(), True, "true"),
        (pa.string(), "Zo\u00eb", "Zo\u00eb"),
        (pa.string(), "half \ud800", "half ?"),
        (pa.string(), ["\udfff"], '["?"]'),
        (pa.map_(pa.string(), pa.string()), {"\ud800": "\ud800"}, [("?", "?")]),
        (pa.bool_(), False, False),
        (pa.bool_(), 0, None),
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.int64(), 2**63, None),
        (pa.int8(), -128, -128),
        (pa.int8(), 128, None),
        (pa.int64(), 3.0, 3),
        (pa.int64(), 3.5, None),
        (pa.int64(), True, None),
        (pa.int64(), "3", None),
        (pa.float64(), 3, 3.0),
        (pa.float64(), 10**400, math.inf),
        (pa.float64(), "Infinity", math.inf),
        (pa.float64(), "3.5", None),
        (pa.float64(), False, None),
        (pa.date32(), "2026-01-31", date(2026, 1, 31)),
        (pa.date32(), "2026-02-31", None),
        (MOMENT, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (MOMENT, "2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        (MOMENT, "2026-01-31 12:00:00.5", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        (MOMENT, "0001-01-01T00:00:00+14:00", None),
        (MOMENT, 1, None),
        (pa.list_(pa.int64()), [1, "x", None, 4], [1, None, None, 4]),
        (pa.list_(pa.int64()), {"a": 1}, None),
        (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": "x"}, [("a", 1), ("b", None)]),
        (pa.map_(pa.string(), pa.int64()), [1], None),
        (
            pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.string()}), "d": pa.list_(pa.bool_())}),
            {"a": "x", "b": {"c": "y", "more": 1}, "e": 1},
            {"a": None, "b": {"c": "y"}, "d": None},
        ),
        (pa.struct({"a": pa.int64()}), [1], None),
        (pa.struct({"a": pa.int64()}), None, None),
    ],
    ids=str,
)
def test_what_fits_is_there(wanted: Any, document: Any, expected: Any) -> None:
    assert pa.array([typed_by(wanted)(document)], wanted).to_pylist() == [expected]


@pytest.mark.parametrize(
    "wanted",
    [
        pa.binary(),
        pa.decimal128(10),
        pa.map_(pa.int64(), pa.string()),
        pa.uint8(),
        pa.float16(),
        pa.timestamp("s"),
        pa.list_(pa.binary()),
    ],
    ids=str,
)
def test_other_types_are_refused(wanted: Any) -> None:
    with pytest.raises(ConfigurationError, match="JSON can't be read as"):
        typed_by(wanted)
