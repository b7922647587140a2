"""Pages over several of a node's partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from query_service.reads.open_scans import OpenScans
from query_service.reads.scans import ScanHandler
from query_service.replicas.replica import StoreReplica
from query_service.stores.base import ChangelogRecord
from query_service.stores.walk import Walk
from query_service.telemetry.metrics import NodeMetrics
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import query_service_pb2, types_pb2
from tests.unit.query_service.one_node import PARTITIONS, admission_of

T = TypeVar("T")
KEYS = [f"key-{number:02}" for number in range(30)]


@pytest_asyncio.fixture
async def scans() -> AsyncIterator[ScanHandler]:
    open_scans = OpenScans(max_open=1, timeout_s=60.0)
    admission = admission_of(NodeMetrics(), (0, 1), KEYS)
    yield ScanHandler(admission, open_scans, max_message_bytes=10**6)
    open_scans.close()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 100])
async def test_a_page_has_the_keys_of_all_partitions_asked_for_in_order(
    scans: ScanHandler, page_size: int, reverse: bool
) -> None:
    request = query_service_pb2.ScanRequest(store="s", partitions=[1, 0], page_size=page_size, reverse=reverse)
    found: list[str] = []
    while True:
        page = query_service_pb2.ScanResponse.FromString(await scans.scan(request))
        found += [entry.key.text for entry in page.entries]
        assert [stamp.partition for stamp in page.replicas] == [1, 0]
        assert len(page.entries) <= page_size
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    held = [key for key in KEYS if partition_for(key.encode(), PARTITIONS) != 2]
    assert found == sorted(held, reverse=reverse)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, Reason.INVALID_REQUEST),
        ({"partition": 3}, Reason.INVALID_REQUEST),
        ({"partitions": [0, 3]}, Reason.INVALID_REQUEST),
        ({"partitions": [0, 0]}, Reason.INVALID_REQUEST),
        ({"partitions": [0], "partition": 0}, Reason.INVALID_REQUEST),
        ({"partitions": [0, 2]}, Reason.PARTITION_NOT_OWNED),
        ({"partitions": [0, 1], "freshness": {"max_lag": 4}}, Reason.LAG_EXCEEDS_BOUND),
    ],
)
async def test_partitions_that_can_not_be_read_together_are_refused(
    scans: ScanHandler, fields: dict[str, Any], reason: Reason
) -> None:
    with pytest.raises(LookupFailure) as caught:
        await scans.scan(query_service_pb2.ScanRequest(store="s", **fields))
    assert caught.value.reason is reason


class _WrittenBefore(OpenScans):
    """Scans before which a record is written, when they have been admitted."""

    async def run(self, replicas: Sequence[StoreReplica], read: Callable[[Walk], T]) -> T:
        for replica in replicas:
            replica.apply([ChangelogRecord(b"new", b"NEW", 0)], replica.position + 1)
        return await super().run(replicas, read)


@pytest.mark.feature("store-arrow-table")
async def test_a_page_says_at_which_position_its_partitions_are_what_it_shows() -> None:
    open_scans = _WrittenBefore(max_open=1, timeout_s=60.0)
    admission = admission_of(NodeMetrics(), (0, 1), KEYS)
    scans = ScanHandler(admission, open_scans, max_message_bytes=10**6)
    served = admission.store("s")
    before = [admission.admit(served, number, types_pb2.Freshness(), types_pb2.Forwarding()).stamp for number in (0, 1)]

    request = query_service_pb2.ScanRequest(store="s", partitions=[0, 1], page_size=100)
    page = query_service_pb2.ScanResponse.FromString(await scans.scan(request))

    assert [entry.key.text for entry in page.entries].count("new") == 2
    assert [stamp.position for stamp in page.replicas] == [stamp.position + 1 for stamp in before]
    assert [stamp.lag for stamp in page.replicas] == [0, 4]
    open_scans.close()


async def test_a_page_that_a_write_is_in_the_way_of_waits_for_it(scans: ScanHandler) -> None:
    served = scans._admission.store("s")
    replica = scans._admission.admit(served, 0, types_pb2.Freshness(), types_pb2.Forwarding()).replica
    with replica._write_lock:
        reading = asyncio.ensure_future(scans.scan(query_service_pb2.ScanRequest(store="s", partition=0)))
        await asyncio.sleep(0)  # its first step goes as far as the thread
        assert scans._open_scans.count == 1
    page = query_service_pb2.ScanResponse.FromString(await reading)
    assert page.entries
