"""Between the wire's messages and the client's values. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache, lru_cache
from typing import Any, TypedDict, TypeVar

from google.protobuf import struct_pb2
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.message import Message

from statehouse.client.answers import (
    Answer,
    Attempt,
    Candidate,
    Change,
    ChangelogSetting,
    ChangelogSettings,
    Controller,
    DescribedMoment,
    Entry,
    EntryCount,
    Explanation,
    Fleet,
    Host,
    InputEnd,
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
from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.contract.version_names import FIRST, plain_store, store_at
from statehouse.contract.watch_marks import position_of
from statehouse.errors import LookupFailure, reason_name
from statehouse.keys.columns import KeyColumn
from statehouse.serdes import JsonValue, from_json_value, json_value
from statehouse.v1 import errors_pb2, fleet_service_pb2, query_service_pb2, types_pb2

Made = TypeVar("Made")

_ROLE_PREFIX = "REPLICA_ROLE_"
_OUTCOMES = fleet_service_pb2.AttemptOutcome.DESCRIPTOR
_OBSTACLES = fleet_service_pb2.ExpressObstacle.DESCRIPTOR
_SERVED_BY = fleet_service_pb2.ServedBy.DESCRIPTOR


def to_freshness(bounds: Freshness, store: str) -> types_pb2.Freshness | None:
    """Return the bounds' wire form for a read of a store, None if there are none."""
    if bounds is ANY:
        return None  # the usual case, made cheap
    # The read needs no positions of other stores.
    at_least = None if bounds.at_least is None else bounds.at_least.of_store(store)
    if not at_least and replace(bounds, at_least=None) == ANY:
        return None
    return types_pb2.Freshness(
        active_only=bounds.active_only,
        max_lag=bounds.max_lag,
        max_staleness_ms=bounds.max_staleness_ms,
        at_least=at_least.to_proto() if at_least else None,
        max_processor_age_ms=bounds.max_processor_age_ms,
        max_input_backlog=bounds.max_input_backlog,
        moment=None if bounds.moment is None else bounds.moment.to_proto(),
        max_value_age_ms=bounds.max_value_age_ms,
    )


def to_get(lookup: Lookup, key: types_pb2.Key) -> query_service_pb2.GetRequest:
    """Return the wire form of a lookup; `key` is the wire form of its key."""
    return query_service_pb2.GetRequest(
        store=lookup.store,
        key=key,
        freshness=to_freshness(lookup.freshness, lookup.store),
        raw=lookup.raw,
        json_text=not lookup.raw,
    )


def from_key(key: types_pb2.Key) -> KeyLike:
    """Return a key as a Python value."""
    return key.raw if key.WhichOneof("key") == "raw" else key.text


def from_value(value: types_pb2.Value) -> StoreValue:  # noqa: PLR0911 - a table of forms
    """Return a store's value as a Python value."""
    match value.WhichOneof("value"):
        case "json":
            return from_json_value(value.json)
        case "json_text":
            document: JsonValue = json.loads(value.json_text)
            return document
        case "text":
            return value.text
        case "long":
            return value.long
        case "double":
            return value.double
        case "raw":
            return value.raw
        case _:
            return None


@lru_cache(maxsize=64)
def role_name(role: int) -> str:
    """Return a role's name; for a role of a newer version, its number as text."""
    try:
        return types_pb2.ReplicaRole.Name(types_pb2.ReplicaRole.ValueType(role)).removeprefix(_ROLE_PREFIX)
    except ValueError:
        return f"ROLE_{role}"


def from_host(host: types_pb2.Host) -> Host:
    """Return a node's address."""
    return Host(host.instance_id, host.host, host.port)


def from_stamp(stamp: types_pb2.ReplicaStamp) -> Stamp:
    """Return the stamp that came with an answer."""
    return Stamp(
        partition=stamp.partition,
        epoch=stamp.epoch,
        host=from_host(stamp.host),
        role=role_name(stamp.role),
        position=stamp.position if stamp.HasField("position") else None,
        lag=stamp.lag if stamp.HasField("lag") else None,
        staleness_ms=stamp.staleness_ms if stamp.HasField("staleness_ms") else None,
        since_ms=stamp.since_ms if stamp.HasField("since_ms") else None,
        processor_age_ms=stamp.processor_age_ms if stamp.HasField("processor_age_ms") else None,
        input_backlog=stamp.input_backlog if stamp.HasField("input_backlog") else None,
        moment=moment_of((stamp,)),
        version=stamp.version or FIRST,
    )


def moment_of(stamps: Iterable[types_pb2.ReplicaStamp]) -> MomentToken | None:
    """Return the batch that an answer from these replicas is of; None if it is of none."""
    named = {stamp.moment.query_id: stamp.moment.batch_id for stamp in stamps if stamp.HasField("moment")}
    return MomentToken(named) if named else None


def token_of(store: str, stamps: Iterable[types_pb2.ReplicaStamp]) -> Token:
    """Return the token for an answer from these replicas."""
    plain = plain_store(store)
    return Token(
        {
            (store_at(plain, stamp.version), stamp.partition): stamp.position
            for stamp in stamps
            if stamp.HasField("position")
        }
    )


def from_get(response: query_service_pb2.GetResponse | query_service_pb2.GetAsOfResponse, store: str) -> Answer:
    """Return a lookup's answer."""
    return _answer(response, from_stamp(response.replica), token_of(store, (response.replica,)))


def _answer(
    response: query_service_pb2.GetResponse | query_service_pb2.GetAsOfResponse, stamp: Stamp, token: Token
) -> Answer:
    return Answer(
        found=response.found,
        value=from_value(response.value) if response.found else None,
        partition=stamp.partition,
        epoch=stamp.epoch,
        host=stamp.host,
        role=stamp.role,
        position=stamp.position,
        lag=stamp.lag,
        staleness_ms=stamp.staleness_ms,
        since_ms=stamp.since_ms,
        timestamp_ms=_timestamp(response),
        token=token,
        processor_age_ms=stamp.processor_age_ms,
        input_backlog=stamp.input_backlog,
        moment=stamp.moment,
        version=stamp.version,
    )


def _timestamp(
    entry: query_service_pb2.GetResponse
    | query_service_pb2.GetAsOfResponse
    | query_service_pb2.Entry
    | query_service_pb2.Window
    | query_service_pb2.Session
    | query_service_pb2.WatchEvent,
) -> int | None:
    return entry.timestamp_ms if entry.HasField("timestamp_ms") else None


def from_batch_get(
    results: Iterable[query_service_pb2.BatchGetResult], stores: Iterable[str]
) -> list[Answer | LookupFailure]:
    """Return the answers and failures of a batch's lookups.

    Answers from one replica have the same stamp, and reading it is most of the work: so each is read once.
    """
    stamps: dict[tuple[str, bytes], tuple[Stamp, Token]] = {}
    outcomes: list[Answer | LookupFailure] = []
    for result, store in zip(results, stores, strict=True):
        if not result.HasField("response"):
            outcomes.append(LookupFailure.from_proto(result.error))
            continue
        response = result.response
        replica = response.replica
        place = store, replica.SerializeToString()
        read = stamps.get(place)
        if read is None:
            read = stamps[place] = from_stamp(replica), token_of(store, (replica,))
        outcomes.append(_answer(response, *read))
    return outcomes


def from_scan(response: query_service_pb2.ScanResponse, store: str) -> Page:
    """Return a scan's page."""
    return Page(
        tuple(Entry(from_key(entry.key), from_value(entry.value), _timestamp(entry)) for entry in response.entries),
        tuple(map(from_stamp, response.replicas)),
        token_of(store, response.replicas),
        moment_of(response.replicas),
    )


def from_window(window: query_service_pb2.Window) -> Window:
    """Return a window."""
    return Window(window.start_ms, window.end_ms, from_value(window.value), _timestamp(window))


def from_session(session: query_service_pb2.Session) -> Session:
    """Return a session."""
    return Session(session.start_ms, session.end_ms, from_value(session.value), _timestamp(session))


def from_scan_windows(response: query_service_pb2.ScanWindowsResponse, store: str) -> WindowPage:
    """Return a page of a scan of windows."""
    return WindowPage(
        tuple(
            KeyedWindow(
                key=from_key(each.key),
                start_ms=each.window.start_ms,
                end_ms=each.window.end_ms,
                value=from_value(each.window.value),
                sequence=each.sequence,
                timestamp_ms=_timestamp(each.window),
            )
            for each in response.windows
        ),
        tuple(map(from_stamp, response.replicas)),
        token_of(store, response.replicas),
        moment_of(response.replicas),
    )


def from_scan_sessions(response: query_service_pb2.ScanSessionsResponse, store: str) -> SessionPage:
    """Return a page of a scan of sessions."""
    return SessionPage(
        tuple(
            KeyedSession(
                from_key(each.key),
                each.session.start_ms,
                each.session.end_ms,
                from_value(each.session.value),
                _timestamp(each.session),
            )
            for each in response.sessions
        ),
        tuple(map(from_stamp, response.replicas)),
        token_of(store, response.replicas),
        moment_of(response.replicas),
    )


def from_version(version: query_service_pb2.VersionedRecord) -> VersionedRecord:
    """Return a version of a key."""
    return VersionedRecord(
        from_value(version.value),
        version.valid_from_ms,
        version.valid_to_ms if version.HasField("valid_to_ms") else None,
    )


class QueryFields(TypedDict):
    """The fields of a query's request that have its arguments."""

    arguments: struct_pb2.Struct
    arguments_text: str


def to_arguments(arguments: Mapping[str, JsonValue]) -> QueryFields:
    """Return a query's arguments in their wire form.

    Raises:
        ValueError: one is not JSON.

    """
    struct = struct_pb2.Struct(fields={name: json_value(value) for name, value in arguments.items()})
    return {"arguments": struct, "arguments_text": json.dumps(dict(arguments), ensure_ascii=False)}


def from_query_store(response: query_service_pb2.QueryStoreResponse, store: str) -> QueryAnswer:
    """Return a custom store's answer."""
    token = token_of(store, (response.replica,))
    text = response.result_text
    result = json.loads(text) if text else from_json_value(response.result)
    return QueryAnswer(result, from_stamp(response.replica), token)


def from_count(response: query_service_pb2.CountResponse, store: str) -> EntryCount:
    """Return a count."""
    stamps = tuple(map(from_stamp, response.replicas))
    token = token_of(store, response.replicas)
    return EntryCount(response.count, response.exact, stamps, token, moment_of(response.replicas))


def to_position(position: WatchPosition) -> query_service_pb2.WatchPosition:
    """Return the wire form of where to resume."""
    message = query_service_pb2.WatchPosition(
        partition=position.partition,
        position=position.offset,
        topic_id=position.topic_id,
        version=position.version,
    )
    if position.after is not None:
        (message.after.query_id,) = position.after
        message.after.batch_id = position.after.batch(message.after.query_id) or 0
    return message


def from_position(message: query_service_pb2.WatchPosition) -> WatchPosition:
    """Return where to resume."""
    after = MomentToken({message.after.query_id: message.after.batch_id}) if message.HasField("after") else None
    return WatchPosition(message.partition, message.position, message.topic_id, after, message.version)


def from_watch(response: query_service_pb2.WatchResponse, store: str) -> Update:
    """Return an update of a watch."""
    stamp = from_stamp(response.replica)
    position = from_position(position_of(stamp.partition, response))
    return Update(
        partition=stamp.partition,
        changes=tuple(map(_change, response.events)),
        current=response.current,
        begins=response.begins,
        gap=response.gap,
        position=position if response.HasField("position") else None,
        replica=stamp,
        token=_watched_token(response, store),
    )


def _watched_token(response: query_service_pb2.WatchResponse, store: str) -> Token:
    """Return an update's token: its changes may be newer than the replica's stamp."""
    seen = [event.offset + 1 for event in response.events if event.HasField("offset")]
    if response.HasField("position"):
        seen.append(response.position)
    stamped = token_of(store, (response.replica,))
    if not seen:
        return stamped
    name = store_at(plain_store(store), response.replica.version)
    return stamped | Token({(name, response.replica.partition): max(seen)})


def _change(event: query_service_pb2.WatchEvent) -> Change:
    return Change(
        key=from_key(event.key),
        value=from_value(event.value) if event.HasField("value") else None,
        deleted=not event.HasField("value"),
        offset=event.offset if event.HasField("offset") else None,
        timestamp_ms=_timestamp(event),
        start_ms=event.start_ms if event.HasField("start_ms") else None,
        end_ms=event.end_ms if event.HasField("end_ms") else None,
    )


@cache
def _fields_of(kind: Any) -> tuple[tuple[str, bool], ...]:  # noqa: ANN401 - a dataclass
    """Return the names of a dataclass's fields, and whether each may be None."""
    return tuple((field.name, "None" in str(field.type)) for field in fields(kind))


def same_named(kind: Callable[..., Made], message: Message, **others: Any) -> Made:  # noqa: ANN401 - of any field
    """Return a value with a message's fields, by their names, but for `others`. What the message lacks is None."""
    for name, may_lack in _fields_of(kind):
        if name not in others:
            others[name] = None if may_lack and not message.HasField(name) else getattr(message, name)
    return kind(**others)


def from_candidate(candidate: errors_pb2.Candidate) -> Candidate:
    """Return a candidate's verdict."""
    return same_named(
        Candidate,
        candidate,
        host=from_host(candidate.host),
        role=role_name(candidate.role),
        reason=reason_name(candidate.reason) if candidate.reason else None,
    )


def from_locate(response: fleet_service_pb2.LocateKeyResponse) -> Location:
    """Return a key's place."""
    return _routed(Location, response.route, candidates=tuple(map(from_candidate, response.candidates)))


def from_explain(response: fleet_service_pb2.ExplainGetResponse) -> Explanation:
    """Return an explained lookup."""
    is_answered = response.HasField("response")
    return same_named(
        Explanation,
        response,
        answer=from_get(response.response, response.route.store) if is_answered else None,
        failure=None if is_answered else LookupFailure.from_proto(response.error),
        location=_routed(Location, response.route, candidates=tuple(map(from_candidate, response.candidates))),
        attempts=tuple(map(_attempt, response.attempts)),
        retry_budget_refused=response.retry_budget_refused or None,
        takes_express_way=not response.express_obstacle if response.HasField("express_obstacle") else None,
        express_obstacle=_name(_OBSTACLES, response.express_obstacle, "EXPRESS_OBSTACLE_")
        if response.express_obstacle
        else "",
    )


def _routed(kind: Callable[..., Made], route: errors_pb2.Route, **others: Any) -> Made:  # noqa: ANN401 - as above
    """Return a value with a route's fields, and `others`."""
    return same_named(
        kind,
        route,
        active=from_host(route.active) if route.HasField("active") else None,
        standbys=tuple(map(from_host, route.standbys)),
        **others,
    )


def _attempt(attempt: fleet_service_pb2.LookupAttempt) -> Attempt:
    return same_named(
        Attempt,
        attempt,
        host=from_host(attempt.host),
        role=role_name(attempt.role),
        outcome=_name(_OUTCOMES, attempt.outcome, "ATTEMPT_OUTCOME_"),
        reason=reason_name(attempt.reason) if attempt.reason else None,
    )


def _name(kind: EnumDescriptor, number: int, prefix: str) -> str:
    """Return a number's name without the prefix that all of its kind have; of a newer version's, the number itself."""
    known = kind.values_by_number.get(number)
    return f"NUMBER_{number}" if known is None else str(known.name).removeprefix(prefix)


def from_fleet(response: fleet_service_pb2.GetFleetResponse) -> Fleet:
    """Return the fleet."""
    return same_named(
        Fleet,
        response,
        stores=tuple(map(from_store, response.stores)),
        nodes=tuple(map(_node, response.nodes)),
        tasks=tuple(map(_task, response.tasks)),
        queries=tuple(map(_query, response.queries)),
        controller=same_named(Controller, response.controller) if response.HasField("controller") else None,
        version=response.version or FIRST,
        versions=same_named(VersionsInfo, response.versions, names=tuple(response.versions.names))
        if response.HasField("versions")
        else None,
        served_by=_name(_SERVED_BY, response.served_by, "SERVED_BY_").lower().replace("_", " ")
        if response.served_by
        else None,
    )


def from_stores(response: fleet_service_pb2.ListStoresResponse) -> tuple[Store, ...]:
    """Return the stores."""
    return tuple(map(from_store, response.stores))


def from_moment(response: fleet_service_pb2.GetMomentResponse) -> DescribedMoment:
    """Return what the processor has told of a batch."""
    moment = MomentToken({response.moment.query_id: response.moment.batch_id})
    return DescribedMoment(moment, tuple(same_named(InputEnd, each) for each in response.source_ends))


def from_changelogs(response: fleet_service_pb2.ListChangelogsResponse) -> tuple[ChangelogSettings, ...]:
    """Return the stores' changelogs."""
    return tuple(
        same_named(
            ChangelogSettings,
            each,
            settings=tuple(same_named(ChangelogSetting, setting) for setting in each.settings),
        )
        for each in response.changelogs
    )


def from_partitions(response: fleet_service_pb2.ListPartitionsResponse) -> tuple[Partition, ...]:
    """Return a store's partitions."""
    return tuple(
        _routed(Partition, each.route, task=each.task, replicas=tuple(map(_replica, each.replicas)))
        for each in response.partitions
    )


def _query(query: fleet_service_pb2.QueryInfo) -> ProcessorQuery:
    return same_named(
        ProcessorQuery,
        query,
        stores=tuple(query.stores),
        status=_status(query.status) if query.HasField("status") else None,
        failure=same_named(QueryFailure, query.failure) if query.HasField("failure") else None,
    )


def _status(status: fleet_service_pb2.QueryStatus) -> QueryStatus:
    return same_named(QueryStatus, status, dead_letters_by_reason=dict(sorted(status.dead_letters_by_reason.items())))


def from_key_columns(store: fleet_service_pb2.StoreInfo) -> tuple[KeyColumn, ...]:
    """Return the columns of a store's keys."""
    return tuple(KeyColumn(each.name, each.type) for each in store.key_columns)


def from_store(store: fleet_service_pb2.StoreInfo) -> Store:
    """Return a store."""
    return same_named(
        Store,
        store,
        is_global=getattr(store, "global"),  # `global` is a Python keyword
        warnings=tuple(store.warnings),
        key_columns=from_key_columns(store),
    )


def _node(node: fleet_service_pb2.NodeInfo) -> Node:
    return same_named(Node, node, host=from_host(node.host))


def _task(task: fleet_service_pb2.TaskInfo) -> Task:
    return same_named(
        Task,
        task,
        active=task.active or None,
        standbys=tuple(task.standbys),
        warm_ups=tuple(task.warm_ups),
        replicas=tuple(map(_replica, task.replicas)),
    )


def _replica(report: fleet_service_pb2.ReplicaReport) -> Replica:
    return same_named(Replica, report, role=role_name(report.role))
