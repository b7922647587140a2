"""The history of a key, as a node answers for it: refusals, and pages while versions come."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from query_service.reads.fleet_view import ServedStore
from query_service.reads.lookups import LookupHandler
from query_service.reads.moments import Admitted
from query_service.reads.open_scans import OpenScans
from query_service.replicas.replica import StoreReplica
from query_service.states.checkpoint import Checkpoint
from query_service.stores.base import ChangelogRecord
from query_service.stores.memory_engine import MemoryEngine
from query_service.stores.versioned import VersionedStore
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.topology import VERSIONED, Role, StoreSpec
from statehouse.control.v1 import page_token_pb2
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

RETENTION_MS = 1_000
SPEC = StoreSpec("s", "t", 1, 0, VERSIONED, value_serde="string", retention_ms=RETENTION_MS)


class Prices:
    """A node with a versioned store of one partition."""

    def __init__(self, open_scans: OpenScans) -> None:
        metrics, at = NodeMetrics(), Checkpoint("t", "id", 0, 1)
        served = ServedStore(SPEC, SERDES["string"], SERDES["string"])
        self.replica = StoreReplica(
            SPEC, 0, VersionedStore(MemoryEngine(10**6), RETENTION_MS), at, metrics.of("s", Role.ACTIVE)
        )
        admission = self
        self.admit_key = lambda request: (
            served,
            request.key.text.encode(),
            Admitted(admission.replica, types_pb2.ReplicaStamp()),
        )
        self._lookups = LookupHandler(
            cast("Any", self), open_scans, metrics, max_batch_entries=1, max_message_bytes=10**6
        )

    def put(self, *versions: tuple[int, str | None], key: str = "ann") -> None:
        records = [ChangelogRecord(key.encode(), value and value.encode(), at_ms) for at_ms, value in versions]
        self.replica.apply(records, self.replica.position + len(records))

    async def ask(self, key: str = "ann", **fields: Any) -> query_service_pb2.GetHistoryResponse:
        request = query_service_pb2.GetHistoryRequest(store="s", key=types_pb2.Key(text=key), **fields)
        return await self._lookups.get_history(request)


@pytest_asyncio.fixture
async def prices() -> AsyncIterator[Prices]:
    open_scans = OpenScans(max_open=1, timeout_s=60.0)
    yield Prices(open_scans)
    open_scans.close()


def shown(page: query_service_pb2.GetHistoryResponse) -> list[tuple[str, int, int | None]]:
    return [
        (each.value.text, each.valid_from_ms, each.valid_to_ms if each.HasField("valid_to_ms") else None)
        for each in page.versions
    ]


async def test_a_deletion_ends_a_version_and_is_none_itself(prices: Prices) -> None:
    prices.put((100, "10"), (200, None), (300, "12"), (300, "13"))
    prices.put((150, "other"), key="ann\0")
    page = await prices.ask()
    assert shown(page) == [("10", 100, 200), ("13", 300, None)]
    assert page.history_start_ms == 0
    assert shown(await prices.ask(from_ms=200)) == [("13", 300, None)]
    assert shown(await prices.ask(to_ms=299)) == [("10", 100, 200)]
    assert shown(await prices.ask(from_ms=200, to_ms=299)) == []
    assert shown(await prices.ask(key="an")) == []


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_span_without_any_time_in_it_is_refused(prices: Prices, reverse: bool) -> None:
    prices.put((100, "10"), (150, "12"))
    with pytest.raises(LookupFailure, match="from_ms is after to_ms") as failure:
        await prices.ask(from_ms=180, to_ms=120, reverse=reverse)
    assert failure.value.reason is Reason.INVALID_REQUEST
    assert shown(await prices.ask(from_ms=120, to_ms=120, reverse=reverse)) == [("10", 100, 150)]


async def test_what_ended_before_the_history_is_not_shown_even_if_the_store_still_has_it(prices: Prices) -> None:
    prices.put((100, "10"), (200, "12"), (300, "9"))
    prices.put((1_250, "moves the stream time"), key="bob")
    page = await prices.ask()
    assert (page.history_start_ms, shown(page)) == (250, [("12", 200, 300), ("9", 300, None)])


@pytest.mark.parametrize("fields", [{"from_ms": 249}, {"to_ms": 249}, {"from_ms": 0, "to_ms": 2_000}])
async def test_a_span_that_is_not_all_within_the_history_is_refused(prices: Prices, fields: dict[str, int]) -> None:
    prices.put((100, "10"), (1_250, "12"))
    with pytest.raises(LookupFailure, match="the history starts at 250") as failure:
        await prices.ask(**fields)
    assert failure.value.reason is Reason.BEFORE_HISTORY
    assert failure.value.metadata == {"history_start_ms": "250"}


@pytest.mark.parametrize("fields", [{"from_ms": -1}, {"to_ms": -1}])
async def test_times_before_1970_are_refused(prices: Prices, fields: dict[str, int]) -> None:
    with pytest.raises(LookupFailure) as failure:
        await prices.ask(**fields)
    assert failure.value.reason is Reason.INVALID_REQUEST


@pytest.mark.feature("key-history-bounded")
@pytest.mark.parametrize("reverse", [False, True])
async def test_pages_go_on_where_they_were_while_versions_come(prices: Prices, reverse: bool) -> None:
    prices.put(*((at_ms, str(at_ms)) for at_ms in range(100, 600, 100)))
    found, token = [], ""
    for following in (600, 700, 350, 800, 900, 1_000, None):
        page = await prices.ask(page_size=2, page_token=token, reverse=reverse)
        found += [(each.value.text, each.valid_from_ms) for each in page.versions]
        token = page.next_page_token
        if not token:
            break
        assert following is not None
        prices.put((following, str(following)))
    times = [at_ms for _, at_ms in found]
    assert found == [(str(at_ms), at_ms) for at_ms in times]
    assert times == sorted(set(times), reverse=reverse)
    assert set(times) >= set(range(100, 600, 100))


async def test_a_page_has_the_end_of_its_first_version_from_the_page_before(prices: Prices) -> None:
    prices.put((100, "10"), (200, "12"), (300, "9"))
    first = await prices.ask(page_size=1, reverse=True)
    second = await prices.ask(page_size=1, reverse=True, page_token=first.next_page_token)
    assert [*shown(first), *shown(second)] == [("9", 300, None), ("12", 200, 300)]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("last_key", [b"", b"\0", b"ann", b"ann\0\1", b"ann\0\1\0\0", b"zed" * 9, b"\xff" * 20])
async def test_a_token_that_was_made_up_does_no_harm(prices: Prices, last_key: bytes, reverse: bool) -> None:
    prices.put((100, "10"), (200, "12"))
    prices.put((100, "20"), key="bob")
    good = (await prices.ask(page_size=1, reverse=reverse)).next_page_token
    token = page_token_pb2.PageToken.FromString(base64.urlsafe_b64decode(good))
    token.last_key = last_key
    made_up = base64.urlsafe_b64encode(token.SerializeToString()).decode()
    page = await prices.ask(page_size=1, reverse=reverse, page_token=made_up)
    assert {each.value.text for each in page.versions} <= {"10", "12"}
    with pytest.raises(LookupFailure) as failure:
        await prices.ask(key="bob", page_size=1, reverse=reverse, page_token=good)
    assert failure.value.reason is Reason.INVALID_PAGE_TOKEN
