"""A store as a frame: what is read of it, in which parts, by which requests. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from statehouse.client.answers import Store
from statehouse.contract.moments import MomentToken
from statehouse.contract.paging import MAX_PAGE_SIZE, KeyRange, after_prefix
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import MURMUR2, SESSION, WINDOW
from statehouse.errors import LookupFailure, Reason, shown
from statehouse.serdes import SERDES
from statehouse.v1 import query_service_pb2, types_pb2

ScanRequest = (
    query_service_pb2.ScanRequest | query_service_pb2.ScanWindowsRequest | query_service_pb2.ScanSessionsRequest
)
EVERY_KEY: Final = (KeyRange(),)


@dataclass(frozen=True, slots=True)
class StoreFrame:
    """What is read of a store, and as which columns. It can be pickled.

    Attributes:
        store: the store.
        schema: a pyarrow.Schema of some or all of its columns.
        raw: keys and values are the bytes in the changelog.
        from_ms: earliest window start, or session end, epoch milliseconds; None: from the first.
        to_ms: latest window or session start, epoch milliseconds; None: to the last.
        as_of_ms: of a versioned store: the values as they were then; None: the latest.
        moment: all of it is of this moment; None: each page is as of its own time.

    """

    store: Store
    schema: Any
    raw: bool = False
    from_ms: int | None = None
    to_ms: int | None = None
    as_of_ms: int | None = None
    moment: MomentToken | None = None

    def __post_init__(self) -> None:
        if (self.from_ms, self.to_ms) != (None, None) and self.store.kind not in {WINDOW, SESSION}:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"store {self.store.name} is of kind {self.store.kind}: from_ms and to_ms are for windows and sessions",
            )
        if self.as_of_ms is not None and self.store.kind in {WINDOW, SESSION}:
            raise LookupFailure(
                Reason.INVALID_REQUEST,
                f"store {self.store.name} is of kind {self.store.kind}: as_of_ms is for versioned stores",
            )

    @property
    def reads_bytes(self) -> bool:
        """Whether keys and values are asked for as bytes: we decode what we know quicker than nodes send it decoded."""
        return self.raw or {self.store.key_serde, self.store.value_serde} <= SERDES.keys()


@dataclass(frozen=True, slots=True)
class FramePart:
    """A part of a frame that is read on its own: ranges of serialized keys of one partition.

    `partition` is None for a global store: every node has all of it, and one copy is read as a whole.
    """

    partition: int | None
    ranges: tuple[KeyRange, ...]


def named_store(stores: Iterable[Store], name: str) -> Store:
    """Return a store by its name.

    Raises:
        LookupFailure: UNKNOWN_STORE.

    """
    by_name = {store.name: store for store in stores}
    if name not in by_name:
        known = ", ".join(sorted(by_name)) or "none"
        raise LookupFailure(Reason.UNKNOWN_STORE, f"no store {shown(name)}; there are: {known}", {"store": name[:200]})
    return by_name[name]


def parts_of(
    store: Store, ranges: Sequence[KeyRange] = EVERY_KEY, partitions: Collection[int] | None = None
) -> tuple[FramePart, ...]:
    """Return the parts that together have the keys of the ranges: none without any.

    If all ranges are of single keys, only their partitions are read. `partitions`: read no others.

    Raises:
        LookupFailure: INVALID_REQUEST, the store doesn't have one of the partitions.

    """
    wanted = range(store.partition_count) if partitions is None else sorted(set(partitions))
    unknown = [number for number in wanted if number not in range(store.partition_count)]
    if unknown:
        raise LookupFailure(
            Reason.INVALID_REQUEST,
            f"partition {unknown[0]} of {store.partition_count}, of store {store.name} (they count from 0)",
        )
    if not ranges or not wanted:
        return ()
    if store.is_global:
        if partitions is not None:
            raise LookupFailure(
                Reason.INVALID_REQUEST, f"store {store.name} is global: each node has all of it, so name no partitions"
            )
        return (FramePart(None, tuple(ranges)),)
    if store.partitioner == MURMUR2 and all(map(_is_one_key, ranges)):
        placed: dict[int, list[KeyRange]] = {}
        for each in ranges:
            placed.setdefault(partition_for(each.start, store.partition_count), []).append(each)
        return tuple(FramePart(number, tuple(placed[number])) for number in wanted if number in placed)
    return tuple(FramePart(number, tuple(ranges)) for number in wanted)


def _is_one_key(keys: KeyRange) -> bool:
    return keys.stop == keys.start + b"\0"


def scan_request(frame: StoreFrame, partition: int | None, keys: KeyRange, page_size: int = 0) -> ScanRequest:
    """Return the request for the first page of a range; its last entry may have the key `keys.stop`, which is too much.

    Not if the keys' serde is a plug-in's: such keys come as text, which can't be compared with `keys.stop`.
    `page_size`: entries a page at most; 0 is as many as a server gives.
    """
    store = frame.store
    request: ScanRequest
    if store.kind == WINDOW:
        request = query_service_pb2.ScanWindowsRequest(from_ms=frame.from_ms, to_ms=frame.to_ms)
    elif store.kind == SESSION:
        request = query_service_pb2.ScanSessionsRequest(from_ms=frame.from_ms, to_ms=frame.to_ms)
    else:
        request = query_service_pb2.ScanRequest(as_of_ms=frame.as_of_ms)
    request.store = store.name
    request.page_size = page_size or MAX_PAGE_SIZE
    request.raw = frame.reads_bytes
    request.json_text = not request.raw
    if partition is not None:
        request.partition = partition
    if store.key_serde not in SERDES and keys.stop is not None and keys.stop == after_prefix(keys.start):
        request.prefix.CopyFrom(types_pb2.Key(raw=keys.start))
        return request
    if keys.start:
        request.from_key.CopyFrom(types_pb2.Key(raw=keys.start))
    if keys.stop is not None:
        # The end of a request is inclusive. What is below `key + NUL` is at most `key`.
        request.to_key.CopyFrom(types_pb2.Key(raw=keys.stop.removesuffix(b"\0")))
    return request
