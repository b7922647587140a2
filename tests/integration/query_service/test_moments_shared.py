"""One who walks at many old moments leaves others theirs: a router and a node on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import grpc
import pytest

from statehouse.contract.moment_leases import LEASED_MAX
from statehouse.contract.moments import MomentBound
from statehouse.errors import Reason
from statehouse.link.proxy import NONE
from statehouse.local.kafka import EmbeddedKafka
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.integration.query_service.test_moments import Written
from tests.support.batches import Placed
from tests.support.fault_proxy import FaultProxy
from tests.support.polling import poll_until
from tests.support.proxy import PROXY
from tests.support.refusals import why_refused
from tests.support.shared import new_store, shared_fleet

ELSEWHERE = "127.0.0.2"
HALF = LEASED_MAX // 2
OLD = 50
"""After so many batches more, only each sixteenth is kept by its id."""


class Walk:
    """A walk by pages of one entry, of the batch that was the newest."""

    def __init__(self, channel: grpc.Channel, store: str) -> None:
        self._query, self._store = query_service_pb2_grpc.QueryServiceStub(channel), store
        self.batch_id, self.token = -1, ""
        self.shown: dict[str, str] = {}

    def go_on(self) -> None:
        request = query_service_pb2.ScanRequest(
            store=self._store,
            page_size=1,
            page_token=self.token,
            freshness=types_pb2.Freshness(moment=MomentBound().to_proto()),
        )
        try:
            page = self._query.Scan(request, timeout=20.0, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        (batch_id,) = {stamp.moment.batch_id for stamp in page.replicas}
        assert self.batch_id in {-1, batch_id}
        self.batch_id, self.token = batch_id, page.next_page_token
        self.shown |= {entry.key.text: entry.value.text for entry in page.entries}

    def begin(self, batch_id: int) -> bool:
        """Read the first page; return whether it is of a batch, or a later one."""
        self.batch_id, self.token = -1, ""
        return why_refused(self.go_on) is None and self.batch_id >= batch_id

    def end(self) -> None:
        while self.token:
            self.go_on()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("proxy", [str(PROXY), NONE])
def test_the_walk_of_one_goes_on_beside_too_many_of_another(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, unique_name: Callable[[str], str], proxy: str
) -> None:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "shares", partitions=2) as fleet:
        node, router = fleet.node("n1"), fleet.router(proxy=proxy)
        written = Written(new_store(fleet, node, unique_name("store"), committed=True))
        with (
            closing(written.writer),
            FaultProxy(router.port, source=ELSEWHERE) as elsewhere,
            grpc.insecure_channel(elsewhere.address) as of_another,
        ):
            name = written.store.name
            written.writer.write(0, [Placed(name, each % 2, b"k%d" % each, b"") for each in range(6)])
            written.next = 1
            other = Walk(of_another, name)
            poll_until(lambda: other.begin(0), 60, "the first batch")
            many = []
            for batch_id in range(17, 17 + HALF + 2):
                written.batch(batch_id + 1 - written.next)
                walk = Walk(router.channel, name)
                poll_until(lambda walk=walk, least=batch_id: walk.begin(least), 30, "the batch")  # type: ignore[misc]
                many.append(walk)
            poll_until(lambda: other.begin(17), 30, "one that no id keeps for long")
            written.batch(OLD)
            newest = Walk(router.channel, name)
            poll_until(lambda: newest.begin(written.next - 1), 30, "the newest batch")

            refused = [why_refused(walk.go_on) for walk in many]
            assert refused == [None] * HALF + [Reason.OVERLOADED] * 2
            other.end()
            assert other.shown["a"] == str(other.batch_id)
            many[0].end()
            assert why_refused(many[-1].go_on) is None, "one has ended"
            newest.end()
            assert newest.shown["a"] == str(written.next - 1), "a new moment needs no place"
