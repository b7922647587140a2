"""Every method has its right, and a request tells which stores it is about."""

from __future__ import annotations

from typing import Any, Final

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.requests import Unreadable
from statehouse.security.rights import BATCH_ENTRIES_MAX, METRICS, RIGHTS, STORE_RIGHTS, Right, stores_asked
from statehouse.serdes.wire import framed
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.service_modules import SERVICE_MODULES

QUERY: Final = "/statehouse.v1.QueryService/"
FLEET: Final = "/statehouse.v1.FleetService/"
HOPS: Final = types_pb2.Forwarding(epoch=3, hops=1)


def methods() -> dict[str, Any]:
    """Return the descriptors of all methods by their paths."""
    return {
        f"/{service.full_name}/{method.name}": method
        for module in SERVICE_MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def message_of(path: str) -> Any:
    return methods()[path].input_type._concrete_class


def test_every_method_has_a_right_and_no_other_has_one():
    newer = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    assert RIGHTS.keys() == methods().keys() | {newer, METRICS}
    assert len(methods()) == 33


def test_every_right_but_forward_is_some_methods():
    assert set(RIGHTS.values()) == set(Right) - {Right.FORWARD, Right.ACT_FOR}


def about_stores() -> list[str]:
    return [path for path, right in RIGHTS.items() if right in STORE_RIGHTS]


def filled(path: str, store: str, forwarding: types_pb2.Forwarding | None = None) -> Any:
    """Return a request of a method about a store."""
    request = message_of(path)()
    about = request
    if path.endswith("/BatchGet"):
        about = request.requests.add()
    elif path.endswith("/ExplainGet"):
        about = request.lookup
    about.store = store
    if forwarding is not None:
        about.forwarding.CopyFrom(forwarding)
    return request


@pytest.mark.parametrize("path", about_stores())
def test_a_store_is_seen_in_every_request_about_one(path: str):
    request = filled(path, "top")
    assert stores_asked(path, request) == ({"top"}, False)
    assert stores_asked(path, request.SerializeToString()) == ({"top"}, False)


@pytest.mark.parametrize(
    "path", [path for path in about_stores() if path not in {f"{FLEET}LocateKey", f"{FLEET}AwaitInput"}]
)
def test_a_forwarded_request_is_seen(path: str):
    request = filled(path, "top", HOPS)
    assert stores_asked(path, request.SerializeToString()).forwarded
    assert stores_asked(path, request).forwarded
    assert not stores_asked(path, filled(path, "top", types_pb2.Forwarding(epoch=9))).forwarded


@pytest.mark.parametrize("path", [path for path in about_stores() if not path.endswith(("/LocateKey", "/BatchGet"))])
def test_a_request_without_a_store_names_the_empty_one(path: str):
    assert stores_asked(path, b"") == ({""}, False)


def test_an_empty_question_for_a_keys_place_names_no_store():
    assert stores_asked(f"{FLEET}LocateKey", b"") == (frozenset(), False)


@pytest.mark.parametrize("path", [path for path, right in RIGHTS.items() if right not in STORE_RIGHTS])
def test_other_requests_name_no_store(path: str):
    # ListPartitions has a store, but shows the fleet.
    assert stores_asked(path, fleet_service_pb2.ListPartitionsRequest(store="top")) == (frozenset(), False)


@pytest.mark.parametrize("path", about_stores())
@pytest.mark.parametrize("request_", [b"\xff", Unreadable("never came"), None])
def test_what_cannot_be_read_names_no_store(path: str, request_: object):
    assert stores_asked(path, request_) == (frozenset(), False)


def test_every_entry_of_a_batch_counts_even_beside_one_that_cannot_be_read():
    entries = [
        query_service_pb2.GetRequest(store="a").SerializeToString(),
        b"\x0a\x02\xff\xff",  # a store whose name is no UTF-8: this entry fails alone at a router
        query_service_pb2.GetRequest(store="b", forwarding=HOPS).SerializeToString(),
    ]
    assert stores_asked(f"{QUERY}BatchGet", framed(entries)) == ({"a", "b"}, True)
    assert stores_asked(f"{QUERY}BatchGet", b"") == (frozenset(), False)


def test_of_a_field_that_is_sent_twice_the_last_one_counts_as_for_the_handler():
    data = b"".join(query_service_pb2.GetRequest(store=name).SerializeToString() for name in ("mine", "yours"))
    assert query_service_pb2.GetRequest.FromString(data).store == "yours"
    assert stores_asked(f"{QUERY}Get", data).stores == {"yours"}
    assert stores_asked(f"{QUERY}Get", memoryview(data)).stores == {"yours"}


def test_requests_about_a_key_are_read_as_far_as_routers_read_them():
    # A page token that is no UTF-8: a router passes it on, so its store must count.
    data = filled(f"{QUERY}FetchWindows", "top").SerializeToString() + b"\x42\x01\xff"
    assert stores_asked(f"{QUERY}FetchWindows", data).stores == {"top"}


def test_a_batch_that_is_far_too_large_is_not_read():
    data = framed([b""] * (BATCH_ENTRIES_MAX + 1))
    with pytest.raises(LookupFailure, match="split it") as caught:
        stores_asked(f"{QUERY}BatchGet", data)
    assert caught.value.reason is Reason.INVALID_REQUEST
