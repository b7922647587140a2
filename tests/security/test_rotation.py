"""Certificates and rules change under load: callers that may ask don't notice, and a lost right is lost soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import grpc
import pytest

from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc
from tests.support.certificates import Issued
from tests.support.fleet import STORE, Fleet, ServerProcess, is_answered_by_active
from tests.support.lookups import LookupLoad
from tests.support.polling import poll_until
from tests.support.secured import RULES, Keys

REFUSED_WITHIN_S: Final = 2.0
"""As docs/security.md says."""
_BUSY_S: Final = 3.0
_A_SECOND: Final = 300
KEYS: Final = [f"k{number}" for number in range(50)]


@dataclass(frozen=True)
class Rotating:
    """Two nodes and a router, whose callers' connections age quickly."""

    keys: Keys
    nodes: tuple[ServerProcess, ServerProcess]
    router: ServerProcess

    def load(self) -> LookupLoad:
        return LookupLoad(self.router.target, STORE, KEYS, _A_SECOND, credentials=self.keys.credentials("reader"))


@pytest.fixture(scope="module", params=["auto", pytest.param("none", marks=pytest.mark.long)], ids=["proxy", "grpcio"])
def rotating(
    request: pytest.FixtureRequest, kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rotating]:
    folder = tmp_path_factory.mktemp("rotating")
    keys = Keys(folder)
    with Fleet(kafka.bootstrap, f"rotating-{free_port()}", folder, partitions=2) as fleet:
        fleet.credentials = keys.credentials("all")
        common: dict[str, Any] = {"proxy": request.param}
        nodes = [fleet.node(name, **keys.options("node", **common)) for name in ("n1", "n2")]
        router = fleet.router(**keys.options("router", **common, max_connection_age_ms=1_000))
        fleet.assign(TaskAssignment("n1", ("n2",)), TaskAssignment("n2", ("n1",)))
        fleet.put(dict.fromkeys(KEYS, "v"))
        fleet.wait_running(nodes)
        poll_until(partial(_finds_all, router), 30, "the router to find what was written")
        yield Rotating(keys, (nodes[0], nodes[1]), router)


@pytest.mark.feature("port-speaks-tls")
@pytest.mark.parametrize("rotations", [2, pytest.param(10, marks=pytest.mark.long)])
def test_certificates_and_rules_rotate_under_load(rotating: Rotating, rotations: int) -> None:
    """Certificates that were replaced are revoked a little later, as an operator of a fleet would do it."""
    keys = rotating.keys
    replaced: list[Issued] = []
    with rotating.load() as load:
        for number in range(rotations):
            keys.revoke(*replaced)
            replaced = [keys.rotate(identity) for identity in ("node", "router")]
            keys.write_rules({**RULES, f"more-{number}": {"roles": ["health"]}})
            begun, sent = time.monotonic(), len(load.history)
            # Longer than files stay unread and connections open.
            poll_until(partial(_is_busy_since, load, begun, sent), 60, "lookups with the new files")
        keys.revoke()
    failed = [lookup.failure for lookup in load.failures]
    assert not failed, f"{len(failed)} of {len(load.history)}: {failed[:3]}"
    for server in (*rotating.nodes, rotating.router):
        assert "read anew" in server.log


def _finds_all(router: ServerProcess) -> bool:
    return all(is_answered_by_active(router, key) for key in KEYS)


def _is_busy_since(load: LookupLoad, begun: float, sent: int) -> bool:
    return time.monotonic() - begun > _BUSY_S and len(load.history) > sent + _A_SECOND


def outcome(stub: Any) -> LookupFailure | None:
    request = query_service_pb2.GetRequest(store=STORE)
    request.key.text = KEYS[0]
    try:
        stub.Get(request, timeout=5.0)
    except grpc.RpcError as error:
        return from_rpc_error(error)
    return None


@pytest.mark.feature("loses-right-loses")
@pytest.mark.parametrize("way", ["rules", "revoked"])
def test_who_loses_a_right_loses_it_on_open_connections_too(rotating: Rotating, way: str) -> None:
    keys = rotating.keys
    mine = keys.issue("reader")
    for server in (rotating.router, rotating.nodes[0]):
        with grpc.secure_channel(server.target, keys.showing(mine)) as channel:
            stub = query_service_pb2_grpc.QueryServiceStub(channel)
            poll_until(partial(_has_come_back, stub), 20, "the rules before to be in force")
            lost = stub.Watch(query_service_pb2.WatchRequest(store=STORE, partition=0), timeout=60.0)
            next(lost)
            assert server is not rotating.router or outcome(stub) is None
            try:
                if way == "rules":
                    keys.write_rules({name: entry for name, entry in RULES.items() if name != "reader"})
                else:
                    keys.revoke(mine)
                at = time.monotonic()
                poll_until(partial(_is_unknown, stub), 20, "the refusal")
                assert time.monotonic() - at < REFUSED_WITHIN_S + 1.0  # and what a busy machine needs
                with pytest.raises(grpc.RpcError) as caught:
                    for _change in lost:
                        pass
                assert from_rpc_error(caught.value).reason is Reason.UNAUTHENTICATED
            finally:
                keys.write_rules(RULES)
                keys.revoke()


def _is_unknown(stub: Any) -> bool:
    failure = outcome(stub)
    return failure is not None and failure.reason is Reason.UNAUTHENTICATED


def _has_come_back(stub: Any) -> bool:
    return not _is_unknown(stub)


def test_files_that_cant_be_used_leave_those_before_in_force(rotating: Rotating) -> None:
    keys = rotating.keys
    whole = keys.issued["router"].certificate_path.read_bytes()
    try:
        keys.issued["router"].certificate_path.write_bytes(b"no certificate")
        keys.rules.write_text("no rules")
        poll_until(lambda: "changed files can't be used" in rotating.router.log, 20, "the complaint")
        with rotating.load() as load:
            poll_until(lambda: len(load.history) > _A_SECOND, 60, "lookups with the files before")
        assert not load.failures
    finally:
        keys.issued["router"].certificate_path.write_bytes(whole)
        keys.write_rules(RULES)
