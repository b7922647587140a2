"""The Python client: reads stores, with asyncio (`AsyncClient`) or without (`Client`).

    with Client("127.0.0.1:7100") as client:
        answer = client.get("leader-boards", "1", freshness=Freshness(max_staleness_ms=5_000))
        print(answer.value, answer.host.instance_id, answer.role, answer.lag)

The caller gives a router's address. Reads of single keys go straight to nodes where possible, else through the router.
Reads made at the same time share calls (docs/client.md).

Values come typed by the store's serde: a JSON document as Python objects, a long as int, text as str, anything
else as bytes. Every failure is a `statehouse.errors.LookupFailure` with its reason and, from a router, the verdict
on each candidate. Nothing here needs Kafka or Spark.
"""

from statehouse.client.answers import (
    Answer,
    Attempt,
    Batch,
    Candidate,
    Change,
    Controller,
    DescribedMoment,
    Entry,
    EntryCount,
    Explanation,
    Fleet,
    Host,
    InputEnd,
    InputRecord,
    KeyedSession,
    KeyedWindow,
    KeyLike,
    Location,
    Lookup,
    Node,
    Page,
    Partition,
    ProcessorQuery,
    QueryAnswer,
    QueryFailure,
    QueryStatus,
    Replica,
    Session,
    SessionPage,
    Stamp,
    Store,
    StoreValue,
    Task,
    Update,
    VersionedRecord,
    VersionsInfo,
    WatchPosition,
    Window,
    WindowPage,
)
from statehouse.client.asynchronous import (
    DEFAULT_TARGET,
    DEFAULT_TIMEOUT_S,
    AsyncClient,
    AsyncMomentReads,
    AsyncReadSession,
)
from statehouse.client.synchronous import Client, MomentReads, ReadSession
from statehouse.client.watches import AsyncBatchWatch, AsyncWatch, BatchWatch, Watch
from statehouse.contract.consistency import Freshness
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.positions import Token
from statehouse.keys.columns import KeyColumns
from statehouse.rpc.credentials import ClientTls
from statehouse.serdes import JsonValue

__all__ = (
    "DEFAULT_TARGET",
    "DEFAULT_TIMEOUT_S",
    "Answer",
    "Asked",
    "AsyncBatchWatch",
    "AsyncClient",
    "AsyncMomentReads",
    "AsyncReadSession",
    "AsyncWatch",
    "Attempt",
    "Batch",
    "BatchWatch",
    "Candidate",
    "Change",
    "Client",
    "ClientTls",
    "Controller",
    "DescribedMoment",
    "Entry",
    "EntryCount",
    "Explanation",
    "Fleet",
    "Freshness",
    "Host",
    "InputEnd",
    "InputRecord",
    "JsonValue",
    "KeyColumns",
    "KeyLike",
    "KeyedSession",
    "KeyedWindow",
    "Location",
    "Lookup",
    "MomentBound",
    "MomentReads",
    "MomentToken",
    "Node",
    "Page",
    "Partition",
    "ProcessorQuery",
    "QueryAnswer",
    "QueryFailure",
    "QueryStatus",
    "ReadSession",
    "Replica",
    "Session",
    "SessionPage",
    "Stamp",
    "Store",
    "StoreValue",
    "Task",
    "Token",
    "Update",
    "VersionedRecord",
    "VersionsInfo",
    "Watch",
    "WatchPosition",
    "Window",
    "WindowPage",
)
