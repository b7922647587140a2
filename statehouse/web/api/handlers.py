"""What each operation of the API does: makes a call of gRPC of a request, and a body of its response."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from google.protobuf.message import Message
from starlette.responses import Response

from statehouse.client import conversion
from statehouse.client.answers import InputRecord, KeyLike
from statehouse.client.keys import to_key
from statehouse.client.moments import shown_by
from statehouse.contract.positions import Token
from statehouse.errors import LookupFailure, Reason, shown
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from statehouse.web.api import bodies
from statehouse.web.api.api_request import ApiRequest, json_response
from statehouse.web.api.bodies import Reader
from statehouse.web.api.parameters import BATCH_KEYS_MAX, from_base64, key_of, wrong
from statehouse.web.api.problems import HttpRefusal

ApiHandler = Callable[[ApiRequest], Awaitable[Response]]
ItemBody = Callable[[Any, Reader], dict[str, Any]]

_TIMES: Final = ("from_ms", "to_ms")
_JSON: Final = "application/json"


async def list_stores(asked: ApiRequest) -> Response:
    """Return the stores."""
    request = fleet_service_pb2.ListStoresRequest()
    await asked.admit(request)
    response = await asked.ask(request)
    return json_response({"epoch": response.epoch, "stores": [bodies.store_body(each) for each in response.stores]})


async def get_store(asked: ApiRequest) -> Response:
    """Return one store."""
    request = fleet_service_pb2.ListStoresRequest()
    await asked.admit(request)
    response = await asked.ask(request)
    for each in response.stores:
        if each.name == asked.store:
            return json_response(bodies.store_body(each))
    raise LookupFailure(
        Reason.UNKNOWN_STORE, f"there is no store {shown(asked.store)} in the assignment", {"store": asked.store[:200]}
    )


async def get_key(asked: ApiRequest) -> Response:
    """Look one key up, now or at a time."""
    key, as_of_ms = asked.key, asked.values["as_of_ms"]
    common: dict[str, Any] = {"store": asked.store, "key": to_key(key), "freshness": asked.freshness}
    if as_of_ms is None:
        request: query_service_pb2.GetRequest | query_service_pb2.GetAsOfRequest
        request = query_service_pb2.GetRequest(**common)
    else:
        request = query_service_pb2.GetAsOfRequest(**common, as_of_ms=as_of_ms)
    reader, response = await _read(asked, request)
    shown_by(asked.store, request.freshness, (response.replica,))
    body = bodies.answer_body(response, asked.store, key, reader)
    stamp = conversion.from_stamp(response.replica)
    headers = bodies.stamp_headers(stamp, conversion.token_of(asked.store, (response.replica,)))
    if not response.found:
        return json_response(body, 404, headers)
    etag = bodies.etag_of(response, asked.store, raw=reader.raw)
    headers["ETag"] = etag
    known = asked.request.headers.get("if-none-match")
    if known is not None and bodies.matches(known, etag):
        return Response(status_code=304, headers={**headers, "Cache-Control": "private, no-cache"})
    return json_response(body, headers=headers)


def key_pages(items: str, item_body: ItemBody) -> ApiHandler:
    """Return the handler of a page of one key's windows, sessions or versions. `items`: the name of these."""

    async def handle(asked: ApiRequest) -> Response:
        values = asked.values
        request = getattr(query_service_pb2, f"{asked.call}Request")(
            store=asked.store,
            key=to_key(asked.key),
            freshness=asked.freshness,
            reverse=values["reverse"],
            page_size=values["page_size"],
            page_token=values["page_token"],
            **{name: values[name] for name in _TIMES},
        )
        reader, response = await _read(asked, request)
        shown_by(asked.store, request.freshness, (response.replica,))
        stamp, token = conversion.from_stamp(response.replica), conversion.token_of(asked.store, (response.replica,))
        body: dict[str, Any] = {
            items: [item_body(each, reader) for each in getattr(response, items)],
            "next_page_token": response.next_page_token or None,
            "replica": bodies.stamp_body(stamp),
            "token": str(token),
            "moment": bodies.moment_body(stamp.moment),
        }
        if isinstance(response, query_service_pb2.GetHistoryResponse):
            body["history_start_ms"] = response.history_start_ms
        return _page(asked, body, bodies.stamp_headers(stamp, token))

    return handle


def store_pages(items: str, item_body: ItemBody) -> ApiHandler:
    """Return the handler of a page of a scan: over a range of keys of a store."""

    async def handle(asked: ApiRequest) -> Response:
        values = asked.values
        first, last, prefix = (_optional_key(asked, name) for name in ("from", "to", "prefix"))
        if prefix is not None and (first is not None or last is not None):
            raise wrong("prefix excludes from and to", "prefix")
        request = getattr(query_service_pb2, f"{asked.call}Request")(
            store=asked.store,
            from_key=first,
            to_key=last,
            prefix=prefix,
            freshness=asked.freshness,
            reverse=values["reverse"],
            page_size=values["page_size"],
            page_token=values["page_token"],
            partition=values["partition"],
            **{name: values[name] for name in (*_TIMES, "as_of_ms") if name in values},
        )
        reader, response = await _read(asked, request)
        moment = shown_by(asked.store, request.freshness, response.replicas)
        stamps = tuple(map(conversion.from_stamp, response.replicas))
        body = {
            items: [item_body(each, reader) for each in getattr(response, items)],
            "next_page_token": response.next_page_token or None,
            "replicas": [bodies.stamp_body(each) for each in stamps],
            "token": str(conversion.token_of(asked.store, response.replicas)),
            "moment": bodies.moment_body(moment),
        }
        return _page(asked, body, bodies.worst_headers(stamps))

    return handle


async def count(asked: ApiRequest) -> Response:
    """Count a store's entries."""
    request = query_service_pb2.CountRequest(
        store=asked.store,
        exact=asked.values["exact"],
        freshness=asked.freshness,
        partition=asked.values["partition"],
    )
    await asked.admit(request)
    response = await asked.make(request)
    moment = shown_by(asked.store, request.freshness, response.replicas)
    stamps = tuple(map(conversion.from_stamp, response.replicas))
    body = {
        "count": response.count,
        "exact": response.exact,
        "replicas": [bodies.stamp_body(each) for each in stamps],
        "token": str(conversion.token_of(asked.store, response.replicas)),
        "moment": bodies.moment_body(moment),
    }
    return json_response(body, headers=bodies.worst_headers(stamps))


async def batch(asked: ApiRequest) -> Response:
    """Look several keys up."""
    # Before the wait for the body. An empty batch would ask the rules about no store at all.
    await asked.gateway.authorise(asked.request, "Get", asked.store)
    document = await _object(asked, {"keys"})
    texts = document.get("keys")
    if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
        raise wrong('the body must have "keys", a list of texts', "keys")
    if len(texts) > BATCH_KEYS_MAX:
        raise wrong(f"a batch has {BATCH_KEYS_MAX} keys at most, not {len(texts)}", "keys")
    if asked.values["columns"]:
        texts = [await asked.key_of_columns(each) for each in texts]
    keys = _keys(texts, base64_keys=asked.values["base64_keys"])
    freshness = asked.freshness
    request = query_service_pb2.BatchGetRequest(
        requests=[
            query_service_pb2.GetRequest(store=asked.store, key=to_key(each), freshness=freshness) for each in keys
        ]
    )
    await asked.admit(request)
    reader = await asked.reader()
    for each in request.requests:
        reader.ask(each)
    response = await asked.make(request)
    return json_response(bodies.batch_body(response.results, asked.store, keys, reader, freshness))


async def query_store(asked: ApiRequest) -> Response:
    """Ask a custom store one of its own queries."""
    await asked.gateway.authorise(asked.request, asked.call, asked.store)  # before the body is waited for
    arguments = await _object(asked, None)
    try:
        fields = conversion.to_arguments(arguments)
    except ValueError as error:
        raise wrong(f"the arguments: {error}") from None
    request = query_service_pb2.QueryStoreRequest(
        store=asked.store,
        key=to_key(asked.key),
        freshness=asked.freshness,
        query=asked.path["query"],
        json_text=True,
        **fields,
    )
    await asked.admit(request)
    response = await asked.make(request)
    shown_by(asked.store, request.freshness, (response.replica,))
    answer = conversion.from_query_store(response, asked.store)
    body = {"result": answer.result, "replica": bodies.stamp_body(answer.replica), "token": str(answer.token)}
    return json_response(body, headers=bodies.stamp_headers(answer.replica, answer.token))


async def locate(asked: ApiRequest) -> Response:
    """Say where a key lives."""
    request = fleet_service_pb2.LocateKeyRequest(store=asked.store, key=to_key(asked.key), freshness=asked.freshness)
    await asked.admit(request)
    response = await asked.ask(request)
    return json_response(bodies.location_body(conversion.from_locate(response)))


async def explain(asked: ApiRequest) -> Response:
    """Look one key up, and show each step."""
    key = asked.key
    lookup = query_service_pb2.GetRequest(store=asked.store, key=to_key(key), freshness=asked.freshness)
    request = fleet_service_pb2.ExplainGetRequest(lookup=lookup)
    await asked.admit(request)
    reader = await asked.reader()
    reader.ask(request.lookup)
    response = await asked.ask(request)
    return json_response(bodies.explanation_body(response, asked.store, key, reader))


async def await_input(asked: ApiRequest) -> Response:
    """Wait until records of the inputs are processed."""
    records = [_record(text) for text in asked.values["record"]]
    request = fleet_service_pb2.AwaitInputRequest(
        store=asked.store,
        records=[
            fleet_service_pb2.InputRecord(topic=each.topic, partition=each.partition, offset=each.offset)
            for each in records
        ],
    )
    await asked.admit(request)
    response = await asked.ask(request)
    return json_response({"token": str(Token.from_proto(response.at_least))})


async def _read(asked: ApiRequest, request: Message) -> tuple[Reader, Any]:
    """Make a call that reads values; return how they are shown, and its response."""
    await asked.admit(request)
    reader = await asked.reader()
    reader.ask(request)
    return reader, await asked.make(request)


def _optional_key(asked: ApiRequest, name: str) -> types_pb2.Key | None:
    key = key_of(name, asked.values[name], base64_keys=asked.values["base64_keys"])
    return None if key is None else to_key(key)


def _keys(texts: Iterable[str], *, base64_keys: bool) -> list[KeyLike]:
    if not base64_keys:
        for each in texts:
            _check_text(each)
        return list(texts)
    try:
        return [from_base64(each) for each in texts]
    except ValueError as error:
        raise LookupFailure(Reason.INVALID_KEY, f"keys: one is no base64: {error}") from None


def _check_text(text: str) -> None:
    if any("\ud800" <= each <= "\udfff" for each in text):
        raise LookupFailure(Reason.INVALID_KEY, "keys: one has half of a surrogate pair, which is no text")


def _record(text: str) -> InputRecord:
    topic, _, place = text.partition(":")
    try:
        partition, offset = map(int, place.split(":"))
        record = InputRecord(topic, partition, offset)
    except ValueError as error:
        raise wrong(f"record: {shown(text)} is not TOPIC:PARTITION:OFFSET: {error}", "record") from None
    if partition >= 2**31 or offset >= 2**63:
        raise wrong(f"record: {shown(text)} has no such partition or offset", "record")
    return record


async def _object(asked: ApiRequest, fields: set[str] | None) -> dict[str, Any]:
    """Return the body, a JSON object with these fields only; None: any. An absent body is an empty object."""
    content_type = asked.request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if content_type != _JSON:
        # A form of another site can't send this type, so it can't ask for anybody.
        raise HttpRefusal(415, f"the body must be {_JSON}, not {shown(content_type)}")
    data = await asked.request.body()
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise wrong(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise wrong("the body must be a JSON object")
    unknown = [] if fields is None else sorted(found.keys() - fields)
    if unknown:
        raise wrong(f"the body has no field {shown(unknown[0])}: there are {', '.join(sorted(fields or ()))}")
    return found


def _page(asked: ApiRequest, body: dict[str, Any], headers: dict[str, str]) -> Response:
    following = body["next_page_token"]
    if following:
        headers["Link"] = f'<{asked.url_with(page_token=following)}>; rel="next"'
    return json_response(body, headers=headers)
