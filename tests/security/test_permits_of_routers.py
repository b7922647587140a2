"""Where callers are judged, a router's proxy sends lookups to nodes for those only whom Python has permitted it.

The same is answered and refused as by a router without the express way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.certificates import Issued
from tests.support.fleet import STORE, Fleet, ServerProcess, confirmed
from tests.support.polling import poll_until
from tests.support.secured import RULES, TOKEN, Keys

REFUSED_WITHIN_S: Final = 2.0
"""As docs/security.md says."""
SLOW_MACHINE_S: Final = 1.0
LASTS_S: Final = 12.0
"""For which the certificate of the caller who is to expire holds from its making."""
KEYS: Final = ("a", "b", "none")
EXPRESS: Final = "statehouse_router_proxy_calls_total"
Outcome = query_service_pb2.GetResponse | query_service_pb2.BatchGetResponse | LookupFailure


@dataclass(frozen=True)
class Judged:
    """A node, a router with the express way, and one without, which judge their callers."""

    keys: Keys
    router: ServerProcess
    plain: ServerProcess
    metrics_port: int
    channels: list[grpc.Channel] = field(default_factory=list)

    def stub(self, router: ServerProcess, shown: grpc.ChannelCredentials) -> Any:
        """Return calls over a connection of their own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels.append(grpc.secure_channel(router.target, shown, options))
        return query_service_pb2_grpc.QueryServiceStub(self.channels[-1])

    def by_nodes(self) -> float:
        """Return how many calls nodes have answered straight to the proxy. It says so every second."""
        return self.keys.scraped(self.metrics_port).value(EXPRESS, way="express", code="OK")

    def is_express(self, ask: Callable[[], object]) -> None:
        """Wait until the proxy sends a caller's lookups to nodes."""
        before = self.by_nodes()

        def is_sent() -> bool:
            ask()
            return self.by_nodes() > before

        poll_until(is_sent, 20, "lookups on the express way")


@pytest.fixture(scope="module")
def fleet(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judged]:
    folder = tmp_path_factory.mktemp("judged")
    keys = Keys(folder)
    with Fleet(kafka.bootstrap, f"judged-{free_port()}", folder, partitions=1) as fleet:
        fleet.credentials = keys.credentials("all")
        fleet.add_store("others")
        fleet.put({"a": "1", "b": "2"})
        fleet.put({"a": "3"}, "others")
        node = fleet.node("n1", **keys.options("node"))
        port = free_port()
        common: dict[str, Any] = {"tls_callers": "optional"}
        router = fleet.router("r1", **keys.options("router", **common, metrics_port=port))
        plain = fleet.router("r2", **keys.options("router", **common, no_express=True))
        fleet.assign(TaskAssignment("n1"))
        fleet.wait_running([node])
        for server in (node, router, plain):
            poll_until(lambda server=server: confirmed(server, "a").found, 30, "what was written")  # type: ignore[misc]
        yield Judged(keys, router, plain, port)


@pytest.fixture
def judged(fleet: Judged) -> Iterator[Judged]:
    """Give the fleet with the rules that it began with."""
    yield fleet
    fleet.keys.write_rules(RULES)
    fleet.keys.revoke()
    for channel in fleet.channels:
        channel.close()
    fleet.channels.clear()


def lookup(key: str = "a", store: str = STORE) -> query_service_pb2.GetRequest:
    return query_service_pb2.GetRequest(store=store, key=types_pb2.Key(text=key))


def get(stub: Any, key: str = "a", store: str = STORE, metadata: Sequence[tuple[str, str]] = ()) -> Outcome:
    return told(lambda: stub.Get(lookup(key, store), timeout=10.0, metadata=metadata))


def batch(stub: Any, *stores: str) -> Outcome:
    requests = [lookup(key, store) for store in stores for key in KEYS]
    return told(lambda: stub.BatchGet(query_service_pb2.BatchGetRequest(requests=requests), timeout=10.0))


def told(call: Callable[[], Any]) -> Outcome:
    """Return what a caller hears, without what changes from one moment to the next."""
    try:
        answer: Any = call()
    except grpc.RpcError as error:
        return from_rpc_error(error)
    responses = [answer] if isinstance(answer, query_service_pb2.GetResponse) else [r.response for r in answer.results]
    for each in responses:
        for moving in ("lag", "staleness_ms", "processor_age_ms", "input_backlog"):
            each.replica.ClearField(moving)
    found: Outcome = answer
    return found


def alike(one: Outcome, other: Outcome) -> bool:
    if isinstance(one, LookupFailure):
        return isinstance(other, LookupFailure) and one.to_proto() == other.to_proto()
    return one == other


def reason(outcome: Outcome) -> Reason | None:
    return outcome.reason if isinstance(outcome, LookupFailure) else None


def shown_by(keys: Keys) -> dict[str, grpc.ChannelCredentials]:
    return {
        "reader": keys.credentials("reader"),
        "token": keys.showing(None, TOKEN),
        "another token": keys.showing(None, "of-nobody"),
        "nothing": keys.showing(None),
        "sees the fleet": keys.credentials("all"),
        "of another store": keys.credentials("other"),
    }


def test_the_same_is_answered_and_refused_as_without_the_express_way(judged: Judged) -> None:
    seen: dict[str, set[Reason | None]] = {}
    for name, shown in shown_by(judged.keys).items():
        ours, plain = judged.stub(judged.router, shown), judged.stub(judged.plain, shown)
        if reason(get(plain)) is None:
            judged.is_express(partial(get, ours))
            judged.is_express(partial(batch, ours, STORE))
        for ask in (
            *(partial(get, key=key, store=store) for key in KEYS for store in (STORE, "others", "no-store")),
            partial(batch_of, (STORE,)),
            partial(batch_of, (STORE, "others")),
            partial(batch_of, ("no-store",)),
        ):
            found, expected = ask(ours), ask(plain)
            assert alike(found, expected), (name, ask, found, expected)
            seen.setdefault(name, set()).add(reason(found))
            if name in {"reader", "token"} and not isinstance(found, LookupFailure):
                assert "port:" not in str(found)
    assert seen["reader"] == seen["token"] == {None, Reason.PERMISSION_DENIED}
    assert seen["sees the fleet"] == {None, Reason.UNKNOWN_STORE}
    assert seen["nothing"] == seen["another token"] == {Reason.UNAUTHENTICATED}


def batch_of(stores: Sequence[str], stub: Any) -> Outcome:
    return batch(stub, *stores)


def test_each_refusal_is_logged_and_counted_beside_lookups_that_are_allowed(judged: Judged) -> None:
    stub = judged.stub(judged.router, judged.keys.credentials("reader"))
    judged.is_express(partial(get, stub))
    before = judged.keys.scraped(judged.metrics_port).value("statehouse_router_denials_total")
    for _ in range(5):
        assert reason(get(stub)) is None
        assert reason(get(stub, store="others")) is Reason.PERMISSION_DENIED
        assert reason(batch(stub, STORE, "others")) is Reason.PERMISSION_DENIED
    assert judged.keys.scraped(judged.metrics_port).value("statehouse_router_denials_total") == before + 10


def test_a_token_of_nobody_is_refused_beside_one_that_was_judged(judged: Judged) -> None:
    stub = judged.stub(judged.router, judged.keys.showing(None))
    right = (("authorization", f"Bearer {TOKEN}"),)
    judged.is_express(partial(get, stub, metadata=right))
    for _ in range(5):
        assert reason(get(stub, metadata=right)) is None
        for other in ((), (("authorization", "Bearer of-nobody"),), right * 2):
            assert reason(get(stub, metadata=other)) is Reason.UNAUTHENTICATED


def withdraw_rule(keys: Keys, _mine: Issued) -> None:
    keys.write_rules({name: entry for name, entry in RULES.items() if name != "reader"})


def narrow_rule(keys: Keys, _mine: Issued) -> None:
    keys.write_rules({**RULES, "reader": {"roles": ["reader"], "stores": ["others"]}})


def revoke(keys: Keys, mine: Issued) -> None:
    keys.revoke(mine)


@pytest.mark.parametrize(
    ("lose", "expected"),
    [
        (withdraw_rule, Reason.UNAUTHENTICATED),
        (narrow_rule, Reason.PERMISSION_DENIED),
        (revoke, Reason.UNAUTHENTICATED),
    ],
)
def test_who_loses_a_right_is_refused_as_soon_as_documented(
    judged: Judged, lose: Callable[[Keys, Issued], None], expected: Reason
) -> None:
    mine = judged.keys.issue("reader")
    stub = judged.stub(judged.router, judged.keys.showing(mine))
    poll_until(lambda: reason(get(stub)) is None, 20, "the rules before to be in force")
    judged.is_express(partial(get, stub))
    judged.is_express(partial(batch, stub, STORE))
    lose(judged.keys, mine)
    at = time.monotonic()
    poll_until(lambda: reason(get(stub)) is expected, 20, "the refusal")
    assert time.monotonic() - at < REFUSED_WITHIN_S + SLOW_MACHINE_S
    for _ in range(20):
        assert reason(get(stub)) is reason(batch(stub, STORE)) is expected


def test_no_permit_outlives_the_certificate(judged: Judged) -> None:
    mine = judged.keys.authority.issue(("localhost",), ("statehouse://tests/reader",), hours=LASTS_S / 3_600)
    ends_at = time.monotonic() + LASTS_S
    stub = judged.stub(judged.router, judged.keys.showing(mine))
    judged.is_express(partial(get, stub))
    assert time.monotonic() < ends_at, "the machine is too slow to show it"
    poll_until(lambda: reason(get(stub)) is Reason.UNAUTHENTICATED, 20, "the end of the certificate")
    assert time.monotonic() < ends_at + SLOW_MACHINE_S
    assert {reason(get(stub)) for _ in range(20)} == {Reason.UNAUTHENTICATED}
