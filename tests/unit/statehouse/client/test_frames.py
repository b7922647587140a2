"""Tables and frames, from a router in this process."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from statehouse.client import AsyncClient, Client, Freshness
from statehouse.client.connections import Connections
from statehouse.client.frames import MOMENT, NO_MOMENT, AsyncFrameReads
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.contract.positions import Token
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fake_router import PARTITIONS, FakeRouter, fake_router
from tests.support.polling import poll_until_async

NAMES = [f"name-{number:03}" for number in range(60)]
BUSY = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "a node restarts")


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {name: {"score": number} for number, name in enumerate(NAMES)}
        yield running


@pytest.fixture
def client(router: FakeRouter) -> Iterator[Client]:
    with Client(router.target) as connected:
        yield connected


def scans(router: FakeRouter) -> list[Any]:
    """The pages that were asked for, without the entry that tells which moment there is."""
    found = [each for each in router.requests if type(each).__name__ == "ScanRequest"]
    return [each for each in found if not (each.page_size == 1 and each.freshness.HasField("moment"))]


def asked_for(router: FakeRouter) -> list[MomentBound | None]:
    """The moments that scans asked for."""
    found = [each.freshness for each in router.requests if type(each).__name__ == "ScanRequest"]
    return [MomentBound.from_proto(each.moment) if each.HasField("moment") else None for each in found]


def shows(*batches: int) -> Callable[[MomentBound], types_pb2.Moment]:
    """Show the newest of some batches that is asked for."""

    def choose(bound: MomentBound) -> types_pb2.Moment:
        exactly, least = bound.exactly("q"), bound.least("q")
        batch_id = max(each for each in batches if each == exactly or (exactly is None and each >= least))
        return types_pb2.Moment(query_id="q", batch_id=batch_id)

    return choose


def placed(name: str) -> int:
    return partition_for(name.encode(), PARTITIONS)


def test_a_store_becomes_a_table_partition_after_partition(client: Client, router: FakeRouter) -> None:
    table = client.to_arrow("boards", page_size=7)

    assert table.column_names == ["key", "value", "timestamp", "partition", "position"]
    rows = table.to_pylist()
    assert [row["key"] for row in rows] == sorted(NAMES, key=lambda name: (placed(name), name))
    assert all(row["partition"] == placed(row["key"]) and row["position"] == 12 for row in rows)
    assert {row["key"]: row["value"] for row in rows} == {
        name: f'{{"score":{number}}}' for number, name in enumerate(NAMES)
    }
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert {request.page_size for request in scans(router)} == {7}


def test_documents_may_have_a_type(client: Client) -> None:
    table = client.to_arrow("boards", key="name-007", value_type=pa.struct({"score": pa.float64()}))
    assert table.column("value").to_pylist() == [{"score": 7.0}]


def test_a_frame_of_pandas_has_the_same_columns(client: Client) -> None:
    frame = client.to_pandas("boards", prefix="name-00", value_type=pa.struct({"score": pa.int64()}))
    assert list(frame.columns) == ["key", "value", "timestamp", "partition", "position"]
    assert sorted(frame["key"]) == NAMES[:10]
    assert frame.set_index("key").loc["name-003", "value"] == {"score": 3}


def test_one_key_asks_one_partition(client: Client, router: FakeRouter) -> None:
    assert client.to_arrow("boards", key="name-005").column("key").to_pylist() == ["name-005"]
    assert [request.partition for request in scans(router)] == [placed("name-005")]
    assert client.to_arrow("boards", key="nobody").num_rows == 0


def test_ranges_prefixes_and_partitions_are_asked_for(client: Client) -> None:
    def found(**options: Any) -> list[str]:
        return sorted(client.to_arrow("boards", **options).column("key").to_pylist())

    assert found(from_key="name-010", to_key="name-012") == NAMES[10:13]
    assert found(from_key="name-058") == NAMES[58:]
    assert found(to_key=b"name-001") == NAMES[:2]
    assert found(prefix="name-02") == NAMES[20:30]
    assert found(partitions=[2, 0]) == [name for name in NAMES if placed(name) in {0, 2}]
    assert found(key="name-005", partitions=[(placed("name-005") + 1) % PARTITIONS]) == []


def test_raw_is_the_bytes_in_the_changelog(client: Client) -> None:
    table = client.to_arrow("boards", key="name-005", raw=True)
    assert (table.column("key").to_pylist(), table.column("value").to_pylist()) == ([b"name-005"], [b'{"score":5}'])


def test_nothing_has_the_columns_too(client: Client, router: FakeRouter) -> None:
    router.values = {}
    table = client.to_arrow("boards", value_type=pa.struct({"score": pa.int64()}))
    assert (table.num_rows, table.schema.field("value").type) == (0, pa.struct({"score": pa.int64()}))
    assert list(client.arrow_batches("boards")) == []


def test_a_limit_ends_the_read(client: Client, router: FakeRouter) -> None:
    everything = client.to_arrow("boards", page_size=4).to_pylist()
    router.requests.clear()
    assert client.to_arrow("boards", page_size=4, limit=6).to_pylist() == everything[:6]
    assert len(scans(router)) <= 3, "two pages, and one that may be on its way"
    assert client.to_arrow("boards", limit=0).num_rows == 0


def test_a_table_has_a_bound(client: Client) -> None:
    with pytest.raises(ConfigurationError, match=r"more than 1,000 bytes .* arrow_batches"):
        client.to_arrow("boards", max_bytes=1_000)


def test_a_page_that_nobody_can_answer_is_asked_for_again(client: Client, router: FakeRouter) -> None:
    batches = client.arrow_batches("boards", page_size=5)
    first = next(batches)
    router.passing += [BUSY] * 3
    rows = [row for batch in [first, *batches] for row in batch.column("key").to_pylist()]
    assert sorted(rows) == NAMES


def test_patience_ends(client: Client, router: FakeRouter) -> None:
    assert client.describe("boards").partition_count == PARTITIONS
    router.passing = [LookupFailure(Reason.OVERLOADED, "no")]
    with pytest.raises(LookupFailure, match="no"):
        client.describe("boards")
    batches = client.arrow_batches("boards", page_size=5, patience=0.0)
    next(batches)
    router.failure = BUSY
    with pytest.raises(LookupFailure, match="a node restarts"):
        list(batches)


def test_what_does_not_pass_is_not_asked_for_again(client: Client, router: FakeRouter) -> None:
    batches = client.arrow_batches("boards", page_size=5)
    next(batches)
    router.failure = LookupFailure(Reason.PERMISSION_DENIED, "the rules say no")
    with pytest.raises(LookupFailure, match="the rules say no"):
        list(batches)


def test_bounds_go_with_each_page_and_no_page_is_older_than_the_one_before(client: Client, router: FakeRouter) -> None:
    list(client.arrow_batches("boards", page_size=5, partitions=[1], freshness=Freshness(max_lag=3)))
    first, *others = scans(router)
    assert others
    assert first.freshness.max_lag == 3
    assert not first.freshness.HasField("at_least")
    for request in others:
        assert request.freshness.max_lag == 3
        assert [(each.partition, each.position) for each in request.freshness.at_least.positions] == [(1, 12)]


def test_a_session_sees_what_its_tables_saw(client: Client) -> None:
    with client.session() as session:
        session.to_arrow("boards", partitions=[2], moment=None)
        assert session.token.position("boards", 2) == 12


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"key": "a", "prefix": "b"}, Reason.INVALID_REQUEST),
        ({"from_key": "a", "prefix": "b"}, Reason.INVALID_REQUEST),
        ({"partitions": [PARTITIONS]}, Reason.INVALID_REQUEST),
        ({"from_ms": 0}, Reason.INVALID_REQUEST),
    ],
)
def test_what_can_not_be_read_is_refused(client: Client, options: Any, reason: Reason) -> None:
    with pytest.raises(LookupFailure) as caught:
        client.to_arrow("boards", **options)
    assert caught.value.reason is reason


def test_an_unknown_store_or_option_is_named(client: Client) -> None:
    with pytest.raises(LookupFailure, match="no store 'elsewhere'; there are: boards"):
        client.to_arrow("elsewhere")
    with pytest.raises(TypeError, match="there is no 'pagesize'; there are as_of_ms"):
        client.to_arrow("boards", pagesize=3)  # type: ignore[call-arg]


def test_without_pyarrow_the_extra_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match=r"statehouse\[dataframe\]"):
        client.to_arrow("boards")


def test_all_pages_are_of_the_newest_moment_and_the_frame_names_it(client: Client, router: FakeRouter) -> None:
    router.shows = shows(4, 7)
    table = client.to_arrow("boards", page_size=9, freshness=Freshness(max_lag=3))
    token = MomentToken({"q": 7})
    assert table.num_rows == len(NAMES)
    assert table.schema.metadata == {MOMENT.encode(): str(token).encode()}
    first, *pages = asked_for(router)
    assert (first, set(pages)) == (MomentBound(), {MomentBound(Asked.EXACTLY, token)})
    assert len(pages) >= PARTITIONS
    assert {request.freshness.max_lag for request in scans(router)} == {3}
    frame = client.to_pandas("boards", limit=1)
    assert MomentToken.parse(frame.attrs[MOMENT]) == token
    assert next(client.arrow_batches("boards")).schema.metadata == table.schema.metadata


def test_no_frame_is_older_than_what_the_client_has_seen(client: Client, router: FakeRouter) -> None:
    router.shows = shows(4, 7)
    client.to_arrow("boards")
    router.requests.clear()
    client.to_arrow("boards", limit=1)
    assert asked_for(router)[0] == MomentBound(Asked.AT_LEAST, MomentToken({"q": 7}))


def test_of_some_partitions_the_earliest_of_their_moments_is_read(client: Client, router: FakeRouter) -> None:
    kept = iter([9, 6])
    at_first: dict[int, int] = {}

    def show(bound: MomentBound) -> types_pb2.Moment:
        batch_id = bound.exactly("q")
        if batch_id is None:
            batch_id = at_first.setdefault(len(at_first), next(kept))
        return types_pb2.Moment(query_id="q", batch_id=batch_id)

    router.shows = show
    table = client.to_arrow("boards", partitions=[3, 1])
    assert MomentToken.parse(table.schema.metadata[MOMENT.encode()].decode()) == MomentToken({"q": 6})
    assert [request.partition for request in router.requests if type(request).__name__ == "ScanRequest"][:2] == [1, 3]


@pytest.mark.parametrize("given", ["option", "bound"])
def test_a_frame_may_be_of_a_given_moment(client: Client, router: FakeRouter, given: str) -> None:
    router.shows = shows(4, 7)
    bound = MomentBound(Asked.EXACTLY, MomentToken({"q": 4}))
    options: Any = {"moment": bound.token} if given == "option" else {"freshness": Freshness(moment=bound)}
    table = client.to_arrow("boards", **options)
    assert table.schema.metadata[MOMENT.encode()] == str(bound.token).encode()
    assert set(asked_for(router)) == {bound}


def test_a_frame_of_a_store_without_moments_says_so(client: Client, router: FakeRouter) -> None:
    table = client.to_arrow("boards")
    assert (table.num_rows, list(table.schema.metadata)) == (len(NAMES), [NO_MOMENT.encode()])
    assert b"earlier version" in table.schema.metadata[NO_MOMENT.encode()]
    assert client.to_pandas("boards").attrs.keys() == {NO_MOMENT}
    assert asked_for(router)[0] == MomentBound()
    for moment in ("newest", MomentToken({"q": 4})):
        with pytest.raises(LookupFailure) as failed:
            client.to_arrow("boards", moment=moment)
        assert failed.value.reason is Reason.MOMENTS_UNAVAILABLE
    with pytest.raises(ValueError, match="not 'yesterday'"):
        client.to_arrow("boards", moment="yesterday")


def test_a_frame_may_be_of_none(client: Client, router: FakeRouter) -> None:
    router.shows = shows(4)
    table = client.to_arrow("boards", moment=None)
    assert (table.num_rows, table.schema.metadata) == (len(NAMES), None)
    assert set(asked_for(router)) == {None}


def test_a_moment_that_is_not_there_yet_is_asked_for_again(client: Client, router: FakeRouter) -> None:
    router.shows = shows(4)
    batches = client.arrow_batches("boards", page_size=5)
    first = next(batches)
    router.passing += [LookupFailure(Reason.MOMENT_NOT_REACHED, "soon")] * 2
    assert sum(batch.num_rows for batch in [first, *batches]) == len(NAMES)
    router.failure = LookupFailure(Reason.MOMENT_GONE, "it is not kept any more")
    with pytest.raises(LookupFailure, match="not kept"):
        client.to_arrow("boards", moment=MomentToken({"q": 4}))


async def test_the_asynchronous_client_has_the_same(router: FakeRouter) -> None:
    async with AsyncClient(router.target) as client:
        rows = [batch.num_rows async for batch in client.arrow_batches("boards")]
        assert (await client.to_arrow("boards")).num_rows == sum(rows) == len(NAMES)
        assert len(await client.to_pandas("boards")) == len(NAMES)
        before = asyncio.all_tasks()
        read = client.arrow_batches("boards", page_size=2)
        await anext(read)
        await read.aclose()
        await poll_until_async(lambda: asyncio.all_tasks() <= before, 5, "the page that was on its way to be given up")


def test_a_page_that_fails_after_its_reader_has_left_is_no_news():
    class Failing(AsyncFrameReads):
        async def _page(self, request: Any, *_: Any) -> Any:
            if request.page_token:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:  # as a call does that ends at the same time
                    raise LookupFailure(Reason.UNREACHABLE, "the second page") from None
            return query_service_pb2.ScanResponse(next_page_token="more")  # noqa: S106 - no password

    async def read() -> list[Any]:
        logged: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        pages = Failing(Connections("nowhere", lambda: pytest.fail("it needs none")), 1.0)._pages_of(
            query_service_pb2.ScanRequest(store="boards"), Token(), {}
        )
        await anext(pages)
        await asyncio.sleep(0)  # the second page is being fetched
        await pages.aclose()
        del pages
        gc.collect()
        return logged

    assert asyncio.run(read()) == []
