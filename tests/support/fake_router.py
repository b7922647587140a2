"""A router in this process that answers from dictionaries, for tests that need only some peer."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import grpc
from google.protobuf import json_format
from grpc_status import rpc_status

from statehouse.contract import paging
from statehouse.contract.moments import MomentBound
from statehouse.contract.partitioning import partition_for
from statehouse.contract.scan_ranges import entry_key_range, key_range
from statehouse.errors import LookupFailure, Reason, unknown_store
from statehouse.errors.statuses import to_status
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import SERDES, Serde, json_value
from statehouse.v1 import (
    errors_pb2,
    fleet_service_pb2,
    fleet_service_pb2_grpc,
    query_service_pb2,
    query_service_pb2_grpc,
    types_pb2,
)

PARTITIONS = 4
HOST = types_pb2.Host(instance_id="node-a", host="127.0.0.1", port=7101)
# The time of all values' changelog records.
WRITTEN_MS = 1_700_000_000_000
STAMP = types_pb2.ReplicaStamp(
    partition=3,
    epoch=5,
    host=HOST,
    role=types_pb2.REPLICA_ROLE_ACTIVE,
    position=12,
    lag=0,
    staleness_ms=40,
    processor_age_ms=700,
    input_backlog=4_980,
)
NODE = fleet_service_pb2.NodeInfo(
    host=HOST, incarnation="1st", state="RUNNING", epoch=5, heartbeat_age_ms=100, reachable=True, capacity=2
)
BOARDS = fleet_service_pb2.StoreInfo(
    name="boards",
    kind="key-value",
    key_serde="string",
    value_serde="json",
    partition_count=PARTITIONS,
    sub_topology=0,
    partitioner="murmur2",
)
UNREACHABLE = errors_pb2.Candidate(
    host=HOST,
    role=types_pb2.REPLICA_ROLE_ACTIVE,
    eligible=False,
    reason=errors_pb2.ERROR_REASON_UNREACHABLE,
    detail="connection refused",
)


class FakeRouter(query_service_pb2_grpc.QueryServiceServicer, fleet_service_pb2_grpc.FleetServiceServicer):
    """Serves one store, "boards" (string to JSON). `failure` fails every call, `passing` the next ones, one each;
    `requests` are those that came, and `shown` the name in the caller's certificate and its authorization with each.

    `fleets`: how many tasks node-a is active for, and the nodes, each time the fleet is asked for.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.failure: LookupFailure | None = None
        self.passing: list[LookupFailure] = []
        self.requests: list[Any] = []
        self.shown: list[tuple[str, str]] = []
        self.target = ""
        self.updates: list[query_service_pb2.WatchResponse] = []
        self.ending: LookupFailure | None = None
        self.nodes = [NODE]
        self.served_by: fleet_service_pb2.ServedBy.ValueType | None = None
        self.obstacle: fleet_service_pb2.ExpressObstacle.ValueType | None = None
        """What keeps lookups from the express way; None: it is of a version that doesn't say."""
        self.controller: fleet_service_pb2.ControllerInfo | None = fleet_service_pb2.ControllerInfo(
            host="driver-1:42", record_age_ms=300
        )
        self.source_ends: list[fleet_service_pb2.InputEnd] | None = [
            fleet_service_pb2.InputEnd(topic="scores", partition=1, offset=12)
        ]
        """What each batch includes of the inputs; None: it doesn't know."""
        self.fleet: fleet_service_pb2.GetFleetResponse | None = None
        """What it says of the fleet in place of all that."""
        self.partitions: Mapping[str, Sequence[fleet_service_pb2.PartitionInfo]] = {}
        """The partitions of each store; of one that isn't here it says that there is none."""
        self.fleets: Iterator[tuple[int, list[fleet_service_pb2.NodeInfo]]] = iter(())
        self.max_batch_entries = self.max_batch_answers = 1_000
        self.shows: Callable[[MomentBound], types_pb2.Moment] | None = None
        """Which batch an answer is of, by what is asked for; None: it is of a version that doesn't know of any."""

    def Get(self, request: query_service_pb2.GetRequest, context: Any) -> query_service_pb2.GetResponse:  # noqa: N802 - the service's name
        self._take(request, request.store, context)
        return self._got(request)

    def _got(self, request: query_service_pb2.GetRequest) -> query_service_pb2.GetResponse:
        key = _text(request.key)
        response = query_service_pb2.GetResponse(found=key in self.values, replica=self._stamp(request))
        if key in self.values:
            response.value.CopyFrom(_value(self.values[key], raw=request.raw))
            response.timestamp_ms = WRITTEN_MS
        return response

    def Scan(self, request: query_service_pb2.ScanRequest, context: Any) -> query_service_pb2.ScanResponse:  # noqa: N802 - the service's name
        self._take(request, request.store, context)
        keys = self._range(key_range, request, context)
        found = sorted(
            (
                key
                for key in self.values
                if keys.start <= key.encode() and (keys.stop is None or key.encode() < keys.stop)
                if not request.HasField("partition") or request.partition == partition_for(key.encode(), PARTITIONS)
            ),
            key=str.encode,
            reverse=keys.reverse,
        )
        page = found[: paging.page_size(request)]
        response = query_service_pb2.ScanResponse(replicas=[self._stamp(request)])
        if request.HasField("partition"):
            response.replicas[0].partition = request.partition
        for key in page:
            wire_key = types_pb2.Key(raw=key.encode()) if request.raw else types_pb2.Key(text=key)
            value = _value(self.values[key], raw=request.raw)
            response.entries.add(key=wire_key, value=value, timestamp_ms=WRITTEN_MS)
        if len(page) < len(found):
            response.next_page_token = paging.next_page_token(request, page[-1].encode())
        return response

    def ScanWindows(  # noqa: N802 - the service's name
        self, request: query_service_pb2.ScanWindowsRequest, context: Any
    ) -> query_service_pb2.ScanWindowsResponse:
        """Every key has a window of a second at 0 and one at 1,000."""
        self._take(request, request.store, context)
        keys = self._range(entry_key_range, request, context)
        first_ms, last_ms = paging.time_span(request)
        found = sorted(
            (
                (entry, key)
                for key in self.values
                for start_ms in (0, 1_000)
                if first_ms <= start_ms <= last_ms
                for entry in [WindowKey(key.encode(), start_ms).to_entry_key()]
                if keys.start <= entry and (keys.stop is None or entry < keys.stop)
            ),
            reverse=keys.reverse,
        )
        page = found[: paging.page_size(request)]
        response = query_service_pb2.ScanWindowsResponse(replicas=[self._stamp(request)])
        for entry, key in page:
            start_ms = WindowKey.from_entry_key(entry).start_ms
            value = _value(self.values[key], raw=request.raw)
            window = query_service_pb2.Window(
                start_ms=start_ms, end_ms=start_ms + 1_000, value=value, timestamp_ms=WRITTEN_MS
            )
            response.windows.add(key=types_pb2.Key(text=key), window=window)
        if len(page) < len(found):
            response.next_page_token = paging.next_page_token(request, page[-1][0])
        return response

    def FetchWindows(  # noqa: N802 - the service's name
        self, request: query_service_pb2.FetchWindowsRequest, context: Any
    ) -> query_service_pb2.FetchWindowsResponse:
        """Every key has a window of a second at 0, one at 1,000 and one at 2,000."""
        self._take(request, request.store, context)
        starts, token = self._span_page(request, length_ms=0)
        response = query_service_pb2.FetchWindowsResponse(replica=self._stamp(request), next_page_token=token)
        for start_ms in starts:
            value = _value(self.values[_text(request.key)], raw=request.raw)
            response.windows.add(start_ms=start_ms, end_ms=start_ms + 1_000, value=value, timestamp_ms=WRITTEN_MS)
        return response

    def FetchSessions(  # noqa: N802 - the service's name
        self, request: query_service_pb2.FetchSessionsRequest, context: Any
    ) -> query_service_pb2.FetchSessionsResponse:
        """Every key has a session from 0 to 500, one from 1,000 and one from 2,000."""
        self._take(request, request.store, context)
        starts, token = self._span_page(request, length_ms=500)
        response = query_service_pb2.FetchSessionsResponse(replica=self._stamp(request), next_page_token=token)
        for start_ms in starts:
            value = _value(self.values[_text(request.key)], raw=request.raw)
            response.sessions.add(start_ms=start_ms, end_ms=start_ms + 500, value=value, timestamp_ms=WRITTEN_MS)
        return response

    def ScanSessions(  # noqa: N802 - the service's name
        self, request: query_service_pb2.ScanSessionsRequest, context: Any
    ) -> query_service_pb2.ScanSessionsResponse:
        """Every key has a session from 0 to 500 and one from 1,000."""
        self._take(request, request.store, context)
        keys = self._range(entry_key_range, request, context)
        first_ms, last_ms = paging.time_span(request)
        found = sorted(
            (
                (entry, key)
                for key in self.values
                for start_ms in (0, 1_000)
                if first_ms <= start_ms + 500 and start_ms <= last_ms
                for entry in [SessionKey(key.encode(), start_ms, start_ms + 500).to_entry_key()]
                if keys.start <= entry and (keys.stop is None or entry < keys.stop)
            ),
            reverse=keys.reverse,
        )
        page = found[: paging.page_size(request)]
        response = query_service_pb2.ScanSessionsResponse(replicas=[self._stamp(request)])
        for entry, key in page:
            start_ms = SessionKey.from_entry_key(entry).start_ms
            value = _value(self.values[key], raw=request.raw)
            session = query_service_pb2.Session(
                start_ms=start_ms, end_ms=start_ms + 500, value=value, timestamp_ms=WRITTEN_MS
            )
            response.sessions.add(key=types_pb2.Key(text=key), session=session)
        if len(page) < len(found):
            response.next_page_token = paging.next_page_token(request, page[-1][0])
        return response

    def GetHistory(  # noqa: N802 - the service's name
        self, request: query_service_pb2.GetHistoryRequest, context: Any
    ) -> query_service_pb2.GetHistoryResponse:
        """Every key has had its value from 0, from 1,000 and from 2,000 on, each time until the next."""
        self._take(request, request.store, context)
        starts, token = self._span_page(request, length_ms=999)
        response = query_service_pb2.GetHistoryResponse(
            replica=self._stamp(request), next_page_token=token, history_start_ms=0
        )
        for start_ms in starts:
            value = _value(self.values[_text(request.key)], raw=request.raw)
            end_ms = start_ms + 1_000 if start_ms < 2_000 else None
            response.versions.add(value=value, valid_from_ms=start_ms, valid_to_ms=end_ms)
        return response

    def GetAsOf(  # noqa: N802 - the service's name
        self, request: query_service_pb2.GetAsOfRequest, context: Any
    ) -> query_service_pb2.GetAsOfResponse:
        """Every key has had its value since 1,000."""
        self._take(request, request.store, context)
        found = _text(request.key) in self.values and (not request.HasField("as_of_ms") or request.as_of_ms >= 1_000)
        response = query_service_pb2.GetAsOfResponse(found=found, replica=self._stamp(request))
        if found:
            response.value.CopyFrom(_value(self.values[_text(request.key)], raw=request.raw))
            response.timestamp_ms = 1_000
        return response

    def BatchGet(  # noqa: N802 - the service's name
        self, request: query_service_pb2.BatchGetRequest, context: Any
    ) -> query_service_pb2.BatchGetResponse:
        """Refuse more than `max_batch_entries`, and find room for `max_batch_answers`."""
        self._take(request, "boards", context)
        if len(request.requests) > self.max_batch_entries:
            self._abort(LookupFailure(Reason.INVALID_REQUEST, "too many"), context)
        response = query_service_pb2.BatchGetResponse()
        for index, lookup in enumerate(request.requests):
            result = response.results.add()
            if lookup.store != "boards":
                result.error.CopyFrom(
                    LookupFailure(Reason.UNKNOWN_STORE, lookup.store, {"store": lookup.store}).to_proto()
                )
            elif index >= self.max_batch_answers:
                result.error.CopyFrom(LookupFailure(Reason.MESSAGE_TOO_LARGE, "ask for fewer").to_proto())
            else:
                result.response.CopyFrom(self._got(lookup))
        return response

    def QueryStore(  # noqa: N802 - the service's name
        self, request: query_service_pb2.QueryStoreRequest, context: Any
    ) -> query_service_pb2.QueryStoreResponse:
        """Answer every query with its name and arguments."""
        self._take(request, request.store, context)
        if request.json_text:
            result = {"query": request.query, **json.loads(request.arguments_text)}
            return query_service_pb2.QueryStoreResponse(result_text=json.dumps(result), replica=self._stamp(request))
        value = json_value({"query": request.query, **json_format.MessageToDict(request.arguments)})
        return query_service_pb2.QueryStoreResponse(result=value, replica=self._stamp(request))

    def Count(self, request: query_service_pb2.CountRequest, context: Any) -> query_service_pb2.CountResponse:  # noqa: N802 - the service's name
        self._take(request, request.store, context)
        return query_service_pb2.CountResponse(
            count=len(self.values), exact=request.exact, replicas=[self._stamp(request)]
        )

    def Watch(  # noqa: N802 - the service's name
        self, request: query_service_pb2.WatchRequest, context: Any
    ) -> Iterator[query_service_pb2.WatchResponse]:
        """Send `updates`, then stay, or fail with `ending`."""
        self._take(request, request.store, context)
        if request.mark_moments and self.shows is not None:
            yield query_service_pb2.WatchResponse(mark=query_service_pb2.WatchMark())
        yield query_service_pb2.WatchResponse(replica=self._stamp(request))
        yield from self.updates
        if self.ending is not None:
            self._abort(self.ending, context)
        left = threading.Event()
        if context.add_callback(left.set):
            left.wait()

    def LocateKey(  # noqa: N802 - the service's name
        self, request: fleet_service_pb2.LocateKeyRequest, context: Any
    ) -> fleet_service_pb2.LocateKeyResponse:
        self._take(request, request.store, context)
        route = errors_pb2.Route(store=request.store, partition=3, epoch=5, active=HOST)
        return fleet_service_pb2.LocateKeyResponse(route=route, candidates=[UNREACHABLE])

    def AwaitInput(  # noqa: N802 - the service's name
        self, request: fleet_service_pb2.AwaitInputRequest, context: Any
    ) -> fleet_service_pb2.AwaitInputResponse:
        self._take(request, request.store, context)
        position = types_pb2.StorePosition(store=request.store, partition=3, position=12)
        return fleet_service_pb2.AwaitInputResponse(at_least=types_pb2.Positions(positions=[position]))

    def ExplainGet(  # noqa: N802 - the service's name
        self, request: fleet_service_pb2.ExplainGetRequest, context: Any
    ) -> fleet_service_pb2.ExplainGetResponse:
        """Every key was asked for at a node that is not there, then where it is; one without a value is nowhere."""
        self._take(request, request.lookup.store, context)
        told = fleet_service_pb2.ExplainGetResponse(
            route=errors_pb2.Route(store="boards", partition=3, epoch=5, active=HOST),
            candidates=[UNREACHABLE],
            took_ms=2.5,
            hedge_after_ms=50.0,
            express_obstacle=self.obstacle,
            express_detail="gone" if self.obstacle else "",
        )
        gone = types_pb2.Host(instance_id="node-b")
        told.attempts.add(
            host=gone,
            role=types_pb2.REPLICA_ROLE_ACTIVE,
            round=1,
            sent_after_ms=0.1,
            took_ms=0.9,
            outcome=fleet_service_pb2.ATTEMPT_OUTCOME_FAILED,
            reason=errors_pb2.ERROR_REASON_UNREACHABLE,
            detail="connection refused",
        )
        answer = self._got(request.lookup)
        if not answer.found:
            told.error.CopyFrom(LookupFailure(Reason.NO_REPLICA_AVAILABLE, "none").to_proto())
            return told
        told.response.CopyFrom(answer)
        told.attempts.add(
            host=HOST,
            role=types_pb2.REPLICA_ROLE_STANDBY,
            round=1,
            hedge=True,
            sent_after_ms=1.0,
            took_ms=1.5,
            outcome=fleet_service_pb2.ATTEMPT_OUTCOME_ANSWERED,
        )
        return told

    def GetFleet(self, request: fleet_service_pb2.GetFleetRequest, context: Any) -> fleet_service_pb2.GetFleetResponse:  # noqa: N802 - the service's name
        self._take(request, "boards", context)
        if self.fleet is not None:
            return self.fleet
        response = fleet_service_pb2.GetFleetResponse(application_id="app", epoch=5, reason="a node joined")
        response.stores.append(BOARDS)
        query = response.queries.add(
            name="scores", stores=["boards"], record_age_ms=700, batch_id=6, batch_age_ms=12_345, input_backlog=4_980
        )
        query.status.MergeFrom(
            fleet_service_pb2.QueryStatus(
                input_rows_per_second=99.6, backlog=5_000, backlog_eta_ms=50_400, watermark_ms=61_500, state_rows=1_234
            )
        )
        if self.served_by is not None:
            response.served_by = self.served_by
        if self.controller is not None:
            response.controller.CopyFrom(self.controller)
        actives, self.nodes = next(self.fleets, (1, self.nodes))
        response.nodes.extend(self.nodes)
        for partition in range(3, 3 - actives, -1):
            task = response.tasks.add(task=f"0_{partition}", active="node-a", reason="first plan")
            task.replicas.add(instance_id="node-a", role=types_pb2.REPLICA_ROLE_ACTIVE, state="running", lag=7)
        return response

    def ListStores(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.ListStoresRequest, context: Any
    ) -> fleet_service_pb2.ListStoresResponse:
        fleet = self.GetFleet(fleet_service_pb2.GetFleetRequest(), context)
        return fleet_service_pb2.ListStoresResponse(epoch=fleet.epoch, stores=fleet.stores)

    def ListNodes(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.ListNodesRequest, context: Any
    ) -> fleet_service_pb2.ListNodesResponse:
        fleet = self.GetFleet(fleet_service_pb2.GetFleetRequest(), context)
        return fleet_service_pb2.ListNodesResponse(epoch=fleet.epoch, nodes=fleet.nodes)

    def ListPartitions(  # noqa: N802 - the service's name
        self, request: fleet_service_pb2.ListPartitionsRequest, context: Any
    ) -> fleet_service_pb2.ListPartitionsResponse:
        self._take(request, "boards", context)
        if request.store not in self.partitions:
            self._abort(unknown_store(request.store, 5), context)
        return fleet_service_pb2.ListPartitionsResponse(partitions=self.partitions[request.store])

    def GetMoment(  # noqa: N802 - the service's name
        self, request: fleet_service_pb2.GetMomentRequest, context: Any
    ) -> fleet_service_pb2.GetMomentResponse:
        self._take(request, request.store, context)
        if self.source_ends is None:
            self._abort(LookupFailure(Reason.MOMENT_GONE, "it has restarted"), context)
        (moment,) = request.moments.moments
        return fleet_service_pb2.GetMomentResponse(moment=moment, source_ends=self.source_ends)

    def ListChangelogs(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.ListChangelogsRequest, context: Any
    ) -> fleet_service_pb2.ListChangelogsResponse:
        fleet = self.GetFleet(fleet_service_pb2.GetFleetRequest(), context)
        found = [fleet_service_pb2.ChangelogInfo(store=each.name, topic=each.changelog_topic) for each in fleet.stores]
        return fleet_service_pb2.ListChangelogsResponse(changelogs=found)

    def WatchFleet(  # noqa: N802 - the service's name
        self, _request: fleet_service_pb2.WatchFleetRequest, context: grpc.ServicerContext
    ) -> Iterator[fleet_service_pb2.WatchFleetResponse]:
        """Have no such call, like a node: all lookups come here."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such call")

    def _stamp(self, request: Any) -> types_pb2.ReplicaStamp:
        stamp = deepcopy(STAMP)
        if self.shows is not None and request.freshness.HasField("moment"):
            stamp.moment.CopyFrom(self.shows(MomentBound.from_proto(request.freshness.moment)))
        return stamp

    def _take(self, request: Any, store: str, context: Any) -> None:
        self.requests.append(request)
        names = context.auth_context().get("x509_common_name", [b""])
        tokens = [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        self.shown.append((names[0].decode(), "".join(tokens)))
        failure = self.passing.pop(0) if self.passing else self.failure
        if failure is None and store != "boards":
            failure = unknown_store(store, 5)
        if failure is not None:
            self._abort(failure, context)

    def _range(self, read: Callable[[Any, Serde], paging.KeyRange], request: Any, context: Any) -> paging.KeyRange:
        try:
            return read(request, SERDES["string"])
        except LookupFailure as failure:
            self._abort(failure, context)
            raise

    def _abort(self, failure: LookupFailure, context: Any) -> None:
        context.abort_with_status(rpc_status.to_status(to_status(failure)))

    def _span_page(self, request: Any, *, length_ms: int) -> tuple[list[int], str]:
        """Return the starts on this page, of what reaches `length_ms` beyond its start, and the next page's token."""
        first_ms, last_ms = paging.time_span(request)
        starts = [
            start_ms
            for start_ms in ((2_000, 1_000, 0) if request.reverse else (0, 1_000, 2_000))
            if _text(request.key) in self.values and first_ms <= start_ms + length_ms and start_ms <= last_ms
        ]
        begin = int(request.page_token or 0)
        end = begin + paging.page_size(request)
        return starts[begin:end], str(end) if end < len(starts) else ""


def _text(key: types_pb2.Key) -> str:
    return key.text or key.raw.decode()


def _value(value: Any, *, raw: bool) -> types_pb2.Value:
    if isinstance(value, bytes):  # as stored, whatever it is
        return types_pb2.Value(raw=value)
    data = json.dumps(value, separators=(",", ":")).encode()
    return types_pb2.Value(raw=data) if raw else SERDES["json"].value(data)


@contextmanager
def fake_router(credentials: grpc.ServerCredentials | None = None) -> Iterator[FakeRouter]:
    """Run one on a free port, with TLS if credentials are given."""
    router = FakeRouter()
    server = grpc.server(ThreadPoolExecutor(4))
    query_service_pb2_grpc.add_QueryServiceServicer_to_server(router, server)
    fleet_service_pb2_grpc.add_FleetServiceServicer_to_server(router, server)
    anywhere = "127.0.0.1:0"
    port = server.add_secure_port(anywhere, credentials) if credentials else server.add_insecure_port(anywhere)
    router.target = f"127.0.0.1:{port}"
    server.start()
    try:
        yield router
    finally:
        server.stop(0).wait()
