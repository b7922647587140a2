"""The entry keys of pages from nodes that don't send them with the entries: of 0.2.0, while a fleet is updated. Pure.

Such a node ignores what it doesn't know. Where that would make its page wrong, the page is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from statehouse.contract.paging import RangeRequest, serialized_key
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.serdes import Serde
from statehouse.v1 import query_service_pb2


def entry_keys_of(request: RangeRequest, page: bytes, key_serde: Serde) -> Sequence[bytes]:
    """Return the bytes by which a serialized page's entries are in order, read from the entries.

    Raises:
        LookupFailure: INTERNAL, the request has what a node without entry keys can't know: it ignored that, and read
            other entries.

    """
    if isinstance(request, query_service_pb2.ScanSessionsRequest):
        raise _too_old("it can't scan sessions")
    if isinstance(request, query_service_pb2.ScanWindowsRequest):
        return [
            WindowKey(serialized_key(each.key, key_serde), each.window.start_ms, each.sequence).to_entry_key()
            for each in query_service_pb2.ScanWindowsResponse.FromString(page).windows
        ]
    if request.HasField("as_of_ms"):
        raise _too_old("it can't scan as of a time")
    return [serialized_key(each.key, key_serde) for each in query_service_pb2.ScanResponse.FromString(page).entries]


def _too_old(what: str) -> LookupFailure:
    message = f"a node's page has not a key for each entry: the node is of an earlier version, and {what}; update it"
    return LookupFailure(Reason.INTERNAL, message)
