"""The express way of pages: which the proxy may put together on its own, and what it asks nodes for. Pure.

`decided_page` is the rule, for one request: the proxy's program does the same in Go (`dataplane/pages.go`), and tests
hold the two together. A page is decided if the snapshot says for each of its partitions whom to ask first. It may ask
for a batch, but not by its id. A request that has other bounds, or that the router would refuse, is the router's, and
so are copies of global stores, which are asked as a whole. What nodes answer is put together as in
`router/lookups/pages.py`, if it is of one batch where one was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from statehouse.contract.moments import Asked
from statehouse.contract.paging import bound_of_page, version_of_page
from statehouse.contract.scan_ranges import key_range
from statehouse.control.v1 import express_pb2
from statehouse.errors import LookupFailure
from statehouse.serdes import BytesSerde, StringSerde
from statehouse.v1 import query_service_pb2, types_pb2

_PLAIN: Final = frozenset(
    {"store", "from_key", "to_key", "prefix", "reverse", "page_size", "page_token", "raw", "partition", "json_text"}
)


@dataclass(frozen=True, slots=True)
class PageCall:
    """What a node is asked for: its part of a page, by a serialized ScanRequest."""

    node: express_pb2.ExpressNode
    partitions: Sequence[int]
    request: bytes


def decided_page(snapshot: express_pb2.ExpressSnapshot, request: bytes) -> list[PageCall] | None:
    """Return what nodes are asked for, for a serialized ScanRequest; None if that is for the router to say."""
    asked = _plain(request)
    store = None if asked is None else next((each for each in snapshot.stores if each.name == asked.store), None)
    if asked is None or store is None or not store.pages or not _is_readable(asked, store.key_form, snapshot.version):
        return None
    partitions = [asked.partition] if asked.HasField("partition") else range(len(store.first))
    if partitions[-1] >= len(store.first):
        return None
    asked.ClearField("partition")
    groups: dict[str, tuple[express_pb2.ExpressNode, list[int]]] = {}
    for partition in partitions:
        if not (place := store.first[partition]):
            return None
        node = snapshot.nodes[place - 1]
        groups.setdefault(node.instance_id, (node, []))[1].append(partition)
    body = asked.SerializeToString()
    return [PageCall(node, its, body + _part(its) + snapshot.page_forwarding) for node, its in groups.values()]


def _part(partitions: Sequence[int]) -> bytes:
    if len(partitions) == 1:
        return query_service_pb2.ScanRequest(partition=partitions[0]).SerializeToString()
    return query_service_pb2.ScanRequest(partitions=partitions).SerializeToString()


def _plain(request: bytes) -> query_service_pb2.ScanRequest | None:
    """Return a request that has nothing else than the fields of a plain one; bounds that don't bound are none."""
    try:
        asked = query_service_pb2.ScanRequest.FromString(request)
    except DecodeError:
        return None
    known = query_service_pb2.ScanRequest()
    known.CopyFrom(asked)
    known.DiscardUnknownFields()
    freshness = types_pb2.Freshness()
    freshness.CopyFrom(asked.freshness)
    freshness.ClearField("moment")
    says_nothing = {
        name for name, bounds in (("freshness", freshness), ("forwarding", asked.forwarding)) if not bounds.ByteSize()
    }
    names = {field.name for field, _ in asked.ListFields()} - says_nothing
    return asked if known == asked and names <= _PLAIN else None


def _is_readable(asked: query_service_pb2.ScanRequest, form: express_pb2.KeyForm.ValueType, version: str) -> bool:
    """Whether the proxy can read the range, and the router wouldn't refuse it. Only text has the order of its bytes.

    A token of another version is the router's to refuse. A page of one batch that is named, by its token or the
    request, is the router's: it keeps that batch for the walk.
    """
    bounds = [getattr(asked, name) for name in ("from_key", "to_key", "prefix") if asked.HasField(name)]
    is_text = form == express_pb2.KEY_FORM_TEXT
    if any(each.WhichOneof("key") == "text" for each in bounds) and not is_text:
        return False
    try:
        key_range(asked, StringSerde() if is_text else BytesSerde())
        bound = bound_of_page(asked)
        if asked.page_token and version_of_page(asked) != version:
            return False
    except LookupFailure:
        return False
    return bound is None or bound.asked is not Asked.EXACTLY
