"""The data source as Spark's workers use it, against a router in this process, without Spark's Java."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

import pyspark_statehouse
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.local.certificates import make_certificates
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import PARTITIONS, FakeRouter, fake_router

NAMES = [f"name-{number:02}" for number in range(30)]
WANTED = StructType(
    [StructField("value", StructType([StructField("score", DoubleType())])), StructField("key", StringType())]
)


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {name: {"score": number} for number, name in enumerate(NAMES)}
        yield running


def source(router: FakeRouter, **options: str) -> Any:
    return pyspark_statehouse.DefaultSource({"router": router.target, "store": "boards", **options})


def rows(reader: Any) -> list[dict[str, Any]]:
    """Read as Spark does: each partition with what was pickled before the partitions were asked for."""
    pickler = CloudPickleSerializer()
    sent = pickler.dumps(reader)
    found = []
    for partition in reader.partitions():
        read = pickler.loads(sent).read(pickler.loads(pickler.dumps(partition)))
        found += [row for batch in read for row in batch.to_pylist()]
    return found


def test_spark_finds_it_by_its_package_and_name() -> None:
    assert pyspark_statehouse.DefaultSource.name() == "statehouse"
    assert pyspark_statehouse.__name__.startswith("pyspark_"), "where PySpark looks for data sources"


def test_the_columns_come_from_the_router(router: FakeRouter) -> None:
    assert source(router).schema() == (
        "`key` string, `value` string, `timestamp` timestamp, `partition` int, `position` bigint"
    )
    assert (
        "`value` struct<score DOUBLE, tags ARRAY<STRING>>"
        in source(router, value_schema="score DOUBLE, tags ARRAY<STRING>").schema()
    )
    assert "`value` array<int>" in source(router, value_schema="array<int>").schema()
    assert "`value` binary" in source(router, raw="true").schema()


def test_a_partition_is_read_for_each_of_the_store_s(router: FakeRouter) -> None:
    reader = source(router).reader(WANTED)
    partitions = reader.partitions()
    assert [part.value[1].partition for part in partitions] == list(range(PARTITIONS))
    assert all(isinstance(part, InputPartition) for part in partitions)
    found = rows(reader)
    assert sorted(row["key"] for row in found) == NAMES
    assert {row["key"]: row["value"] for row in found}["name-07"] == {"score": 7.0}


def moments(router: FakeRouter) -> list[MomentBound | None]:
    asked = [each for each in router.requests if isinstance(each, query_service_pb2.ScanRequest)]
    return [
        MomentBound.from_proto(each.freshness.moment) if each.freshness.HasField("moment") else None for each in asked
    ]


@pytest.mark.parametrize("given", [None, "newest", str(MomentToken({"q": 4}))])
def test_all_tasks_read_the_moment_that_the_driver_has_agreed_on(router: FakeRouter, given: str | None) -> None:
    newest = iter([4, 5, 6])

    def show(bound: MomentBound) -> types_pb2.Moment:
        named = bound.exactly("q")
        return types_pb2.Moment(query_id="q", batch_id=next(newest) if named is None else named)

    router.shows = show
    found = rows(source(router, **({} if given is None else {"moment": given})).reader(WANTED))
    assert sorted(row["key"] for row in found) == NAMES
    assert set(moments(router)[1:]) == {MomentBound(Asked.EXACTLY, MomentToken({"q": 4}))}
    assert len(moments(router)) > PARTITIONS


def test_a_store_without_moments_is_read_page_by_page_and_the_log_says_so(
    router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(rows(source(router).reader(WANTED))) == len(NAMES)
    assert "store boards is read as of no moment" in caplog.text
    assert set(moments(router)[1:]) == {None}
    caplog.clear()
    rows(source(router, moment="off").reader(WANTED))
    assert not caplog.text
    with pytest.raises(LookupFailure) as failed:
        source(router, moment="newest").reader(WANTED).partitions()
    assert failed.value.reason is Reason.MOMENTS_UNAVAILABLE


def test_filters_that_are_pushed_say_what_is_read(router: FakeRouter) -> None:
    left = EqualTo(("value", "score"), 7.0)
    filters = [EqualTo(("key",), "name-07"), left]
    assert source(router).reader(WANTED).pushFilters(filters) == filters, "not without the option"
    reader = source(router, pushdown="true").reader(WANTED)
    assert reader.pushFilters(filters) == [left]
    (part,) = reader.partitions()
    assert part.value[1].partition == partition_for(b"name-07", PARTITIONS)
    assert [row["key"] for row in rows(reader)] == ["name-07"]
    reader.pushFilters([EqualTo(("key",), "name-08")])
    assert rows(reader) == [], "both can't be"


def test_spark_does_not_refuse_it_where_filters_are_not_pushed(router: FakeRouter) -> None:
    reader = source(router).reader(WANTED)
    # Spark's own test in plan_data_source_read.
    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


def test_options_say_what_is_read(router: FakeRouter) -> None:
    assert [row["key"] for row in rows(source(router, prefix="name-2").reader(WANTED))] == sorted(
        NAMES[20:], key=lambda name: (partition_for(name.encode(), PARTITIONS), name)
    )
    reader = source(router, key="name-03", max_lag="4").reader(WANTED)
    router.requests.clear()
    assert [row["key"] for row in rows(reader)] == ["name-03"]
    _of_moment, scan = [each for each in router.requests if type(each).__name__ == "ScanRequest"]
    assert scan.freshness.max_lag == 4
    assert {row["key"] for row in rows(source(router, partition="1").reader(WANTED))} == {
        name for name in NAMES if partition_for(name.encode(), PARTITIONS) == 1
    }


def test_what_is_wrong_is_said_before_anything_is_read(router: FakeRouter) -> None:
    with pytest.raises(LookupFailure, match="there are: boards"):
        source(router, store="elsewhere").schema()
    with pytest.raises(ConfigurationError, match="no key is between them"):
        source(router, **{"from": "b", "to": "a"}).reader(WANTED)
    with pytest.raises(ConfigurationError, match="no option 'kye'"):
        source(router, kye="a").schema()
    with pytest.raises(ConfigurationError, match="which servers to trust"):
        source(router, token_file="/nowhere").schema()  # noqa: S106 - a path
    with pytest.raises(ConfigurationError, match="no column 'score'"):
        source(router).reader(StructType([StructField("score", IntegerType())]))


def test_files_for_tls_are_named_by_options_or_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_certificates(tmp_path)
    (tmp_path / "token").write_text("of-the-test")
    pair = ((tmp_path / "router.key").read_bytes(), (tmp_path / "router.pem").read_bytes())
    demands = grpc.ssl_server_credentials([pair], (tmp_path / "ca.pem").read_bytes(), require_client_auth=True)
    files = {"ca": "ca.pem", "certificate": "reader.pem", "key": "reader.key"}
    with fake_router(demands) as router:
        router.values = {"1": {"score": 1}}
        given = {f"tls_{name}": str(tmp_path / file) for name, file in files.items()}
        reader = source(router, token_file=str(tmp_path / "token"), **given).reader(WANTED)
        assert [row["key"] for row in rows(reader)] == ["1"]
        assert set(router.shown) == {("reader", "Bearer of-the-test")}
        assert b"of-the-test" not in CloudPickleSerializer().dumps(reader), "only the path travels"
        for name, file in files.items():
            monkeypatch.setenv(f"STATEHOUSE_TLS_{name.upper()}", str(tmp_path / file))
        assert [row["key"] for row in rows(source(router).reader(WANTED))] == ["1"]
