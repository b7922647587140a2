"""Malformed records and well-formed ones; all cases in one job, since a job costs more than a thousand rows."""

import pytest
from pyspark.sql import Row, SparkSession

from processor.operators.json_records import FieldType, parse_json, parse_json_table

# Value -> what the fields become, or the reason of the refusal and a part of its detail.
RECORDS = {
    b'{"n":1,"i":2,"t":"x"}': (1.0, 2, "x"),
    b' {"t" : "x", "i":2.0, "n":12.5, "more":[1]}\n': (12.5, 2, "x"),
    b'{"n":-0.0,"i":6e0,"t":""}': (0.0, 6, ""),
    b'{"n":1e-29,"i":100.0,"t":"Zo\\u00eb"}': (1e-29, 100, "Zoë"),
    b'{"n":12345678901234567890,"i":9007199254740993.0,"t":"x"}': (12345678901234567890.0, 9007199254740993, "x"),
    b'{"n":0.1,"i":9223372036854775807,"t":"x"}': (0.1, 9223372036854775807, "x"),
    b'{"n":1,"i":-3,"t":"x"}': (1.0, -3, "x"),
    None: ("null_value", "no value"),
    b"": ("not_json", "not a JSON document"),
    b"\xff\xfe": ("not_json", ""),
    b'{"n":1,"i":2,"t":"\xff"}': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"} x': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"}] x': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"},2': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x"},"end"': ("not_json", ""),
    b'{"n":1,"i":2,"t":"x",}': ("not_json", ""),
    b"{'n':1,'i':2,'t':'x'}": ("not_json", ""),
    b'{"n":01,"i":2,"t":"x"}': ("not_json", ""),
    b'{"n":1,"n":1,"i":2,"t":"x"}': ("not_json", ""),
    b"[" * 2000: ("not_json", ""),
    b"null": ("wrong_type", "expected an object"),
    b"[1]": ("wrong_type", "ARRAY<BIGINT>, expected an object"),
    b'{"i":2,"t":"x"}': ("missing_field", "'n' is missing"),
    b'{"N":1,"i":2,"t":"x"}': ("missing_field", "'n' is missing"),
    b'{"n":1,"i":2}': ("missing_field", "'t' is missing"),
    b'{"n":"1","i":2,"t":"x"}': ("wrong_type", "'n' is STRING, expected a finite number"),
    b'{"n":true,"i":2,"t":"x"}': ("wrong_type", "'n' is BOOLEAN"),
    b'{"n":null,"i":2,"t":"x"}': ("wrong_type", "'n' is VOID"),
    b'{"n":NaN,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE, expected a finite number"),
    b'{"n":-Infinity,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE"),
    b'{"n":1e400,"i":2,"t":"x"}': ("wrong_type", "'n' is DOUBLE"),
    b'{"n":1,"i":6.5,"t":"x"}': ("wrong_type", "'i' is DECIMAL(2,1), expected an integer of 64 bits"),
    b'{"n":1,"i":1e-29,"t":"x"}': ("wrong_type", "'i' is DOUBLE"),
    b'{"n":1,"i":0.00000000000000000000000000001,"t":"x"}': ("wrong_type", "'i' is DECIMAL(29,29)"),
    b'{"n":1,"i":9223372036854775808,"t":"x"}': ("wrong_type", "'i' is DECIMAL(19,0)"),
    b'{"n":1,"i":1e19,"t":"x"}': ("wrong_type", "'i' is DOUBLE"),
    b'{"n":1,"i":[1],"t":"x"}': ("wrong_type", "'i' is ARRAY<BIGINT>"),
    b'{"n":1,"i":2,"t":5}': ("wrong_type", "'t' is BIGINT, expected a string"),
}

# Key -> what the table's key becomes, or the reason.
KEYS = {
    b"2": "2",
    b"6.0": "6",
    b"-4": "-4",
    None: ("null_key", "needs a key"),
    b"abc": ("wrong_type", "the key is not an integer"),
    b"6.5": ("wrong_type", "the key is not an integer"),
    b"06": ("wrong_type", "the key is not an integer"),
    b"": ("wrong_type", "the key is not an integer"),
    b'"2"': ("wrong_type", "the key is not an integer"),
}


@pytest.fixture(scope="module")
def parsed(spark: SparkSession):
    fields = {"n": FieldType.NUMBER, "i": FieldType.INTEGER, "t": FieldType.TEXT}
    rows = [(None if value is None else bytearray(value),) for value in RECORDS]
    frame = parse_json(spark.createDataFrame(rows, "value binary").coalesce(1), fields)
    return dict(zip(RECORDS, frame.collect(), strict=True))


@pytest.mark.feature("records-t-used")
@pytest.mark.parametrize("value", RECORDS, ids=repr)
def test_a_value(parsed: dict[bytes | None, Row], value: bytes | None):
    row, expected = parsed[value], RECORDS[value]
    if len(expected) == 3:
        assert (row.n, row.i, row.t, row.reason, row.detail) == (*expected, None, None)
    else:
        assert row.reason == expected[0]
        assert expected[1] in row.detail


def test_a_tables_keys_and_deletes(spark: SparkSession):
    rows = [(key if key is None else bytearray(key), value) for key in KEYS for value in (b'{"i":1}', None)]
    rows.append((bytearray(b"9"), b"x"))
    frame = spark.createDataFrame(
        [(key, None if value is None else bytearray(value)) for key, value in rows], "key binary, value binary"
    )
    fields = {"i": FieldType.INTEGER}
    found = parse_json_table(frame.coalesce(1), fields, key_type=FieldType.INTEGER).collect()
    for (_, value), row in zip(rows[:-1], found[:-1], strict=True):
        expected = KEYS[None if row.key is None else bytes(row.key)]
        if isinstance(expected, str):
            assert (row.table_key, row.reason, row.deleted) == (expected, None, value is None)
        else:
            assert row.reason == expected[0]
            assert expected[1] in row.detail
    assert found[-1].reason == "not_json"


def test_a_fields_name_cannot_break_out_of_its_path(spark: SparkSession):
    frame = spark.createDataFrame([(bytearray(b"{}"),)], "value binary")
    with pytest.raises(ValueError, match="quote"):
        parse_json(frame, {"a'b": FieldType.TEXT})
