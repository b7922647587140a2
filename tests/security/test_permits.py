"""Where callers are judged, the program answers those whom Python has permitted it, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, confirmed
from tests.support.polling import poll_until
from tests.support.secured import TOKEN, Keys


@dataclass(frozen=True)
class Secured:
    """A node that judges its callers, and has another store that few may read."""

    keys: Keys
    node: ServerProcess
    metrics_port: int

    def ask(
        self, channel: grpc.Channel, store: str = STORE, **forwarding: int
    ) -> query_service_pb2.GetResponse | LookupFailure:
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        request = query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text="a"))
        if forwarding:
            request.forwarding.CopyFrom(types_pb2.Forwarding(**forwarding))
        try:
            answer: query_service_pb2.GetResponse = stub.Get(request, timeout=5.0)
        except grpc.RpcError as error:
            return from_rpc_error(error)
        return answer

    def by_the_program(self) -> float:
        """Return how many calls the program has answered by itself. It says so every second."""
        found = self.keys.scraped(self.metrics_port)
        return found.value("statehouse_node_proxy_calls_total", way="stores", code="OK")


@pytest.fixture(scope="module")
def secured(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("permits")
    keys = Keys(folder)
    with Fleet(kafka.bootstrap, f"permits-{free_port()}", folder, partitions=1) as fleet:
        fleet.credentials = keys.credentials("all")
        fleet.add_store("others")
        fleet.put({"a": "1"})
        fleet.put({"a": "2"}, "others")
        node = fleet.node(
            "n1", **keys.options("node", engine="go", tls_callers="optional", metrics_port=(port := free_port()))
        )
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        assert confirmed(node, "a").found
        yield Secured(keys, node, port)


def test_a_caller_is_answered_by_the_program_once_it_has_been_judged(secured: Secured) -> None:
    """It hears as little of where nodes are as before."""
    for shown, sees in (
        (secured.keys.credentials("reader"), False),
        (secured.keys.showing(None, TOKEN), False),
        (secured.keys.credentials("all"), True),
    ):
        with grpc.secure_channel(secured.node.target, shown) as channel:
            before = secured.by_the_program()

            def is_answered(channel: grpc.Channel = channel, before: float = before, sees: bool = sees) -> bool:
                answer = secured.ask(channel)
                assert isinstance(answer, query_service_pb2.GetResponse)
                assert answer.value.text == "1"
                assert answer.replica.host.instance_id == "n1"
                assert bool(answer.replica.host.port) is sees
                return secured.by_the_program() > before + 3

            poll_until(is_answered, 20, "answers of the program")


def test_a_permit_is_for_one_store_and_no_more(secured: Secured) -> None:
    with grpc.secure_channel(secured.node.target, secured.keys.credentials("reader")) as channel:
        for _ in range(5):
            assert reason(secured.ask(channel)) is None
            assert reason(secured.ask(channel, "others")) is Reason.PERMISSION_DENIED
            assert reason(secured.ask(channel, hops=1)) is Reason.PERMISSION_DENIED, "it is no router"
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        lookups = [
            query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text="a")) for store in (STORE, "others", STORE)
        ]
        with pytest.raises(grpc.RpcError) as caught:
            stub.BatchGet(query_service_pb2.BatchGetRequest(requests=lookups), timeout=5.0)
        assert reason(from_rpc_error(caught.value)) is Reason.PERMISSION_DENIED


def test_counts_need_the_right_to_scan(secured: Secured) -> None:
    request = query_service_pb2.CountRequest(store=STORE, partition=0)
    with grpc.secure_channel(secured.node.target, secured.keys.credentials("looker")) as channel:
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        for _ in range(5):
            assert reason(secured.ask(channel)) is None
            with pytest.raises(grpc.RpcError) as caught:
                stub.Count(request, timeout=5.0)
            assert reason(from_rpc_error(caught.value)) is Reason.PERMISSION_DENIED
    with grpc.secure_channel(secured.node.target, secured.keys.credentials("reader")) as channel:
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        before = secured.by_the_program()

        def is_counted() -> bool:
            answer = stub.Count(request, timeout=5.0)
            assert answer.count == 1
            assert not answer.replicas[0].host.port
            return secured.by_the_program() > before + 3

        poll_until(is_counted, 20, "counts by the program")


def test_a_token_of_nobody_is_refused_beside_one_that_was_judged(secured: Secured) -> None:
    with grpc.secure_channel(secured.node.target, secured.keys.showing(None)) as channel:
        stub = query_service_pb2_grpc.QueryServiceStub(channel)
        request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text="a"))
        for _ in range(5):
            assert stub.Get(request, timeout=5.0, metadata=(("authorization", f"Bearer {TOKEN}"),)).found
            for other in ((), (("authorization", "Bearer of-nobody"),)):
                with pytest.raises(grpc.RpcError) as caught:
                    stub.Get(request, timeout=5.0, metadata=other)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def reason(outcome: query_service_pb2.GetResponse | LookupFailure) -> Reason | None:
    return outcome.reason if isinstance(outcome, LookupFailure) else None
