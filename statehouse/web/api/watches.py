"""A watch as server-sent events.

    event: current      values that are there now; the first of them has "begins"
    event: change       changes, in the order of their partition's changelog
    event: gap          changes of a partition may have been missed; its current values follow
    event: moment       by moment: all before it is of this batch or earlier ones, what follows of later ones
    event: problem      the watch has ended, and why

The id of an event says where to go on after it. A watch goes on automatically when its router fails, at another one or
at the same one once it is back; a caller whose connection breaks goes on with Last-Event-ID. By moment only marks have
ids: what came after the last one comes again then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, Final

import grpc
import grpc.aio
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from statehouse.client import conversion
from statehouse.client.answers import KeyLike, Update
from statehouse.client.keys import to_key
from statehouse.client.routers import is_routers
from statehouse.client.watches import UNMARKED
from statehouse.contract.moments import MomentToken, unavailable
from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.authorized import ASKED_AGAIN_S
from statehouse.rpc.failures import from_rpc_error
from statehouse.rpc.streams import SILENCE_S, TAKEN_WITHIN_S
from statehouse.runtime.backoff import Backoff, BackoffPolicy
from statehouse.runtime.waiting import is_told_to_end
from statehouse.v1 import query_service_pb2, types_pb2
from statehouse.web.api import bodies, json_text
from statehouse.web.api.api_request import ApiRequest
from statehouse.web.api.bodies import Reader
from statehouse.web.api.event_positions import PARTITIONS_MAX, MarkedProgress, Progress, positions_of
from statehouse.web.api.parameters import key_of, wrong
from statehouse.web.api.problems import problem_of
from statehouse.web.gateway import CallerRefused

_COMES_BACK: Final = BackoffPolicy("watched_router_comes_back", first_s=0.05, longest_s=1.0)
_COMES_BACK_WITHIN_S: Final = 60.0
"""So long a watch waits for a router to come back."""
_PING_S: Final = 10.0
RETRY_MS: Final = 500
"""When a browser connects again after its connection broke."""
LAST_EVENT_ID: Final = "last-event-id"

_Stream = grpc.aio.UnaryStreamCall[query_service_pb2.WatchRequest, query_service_pb2.WatchResponse]


async def watch(asked: ApiRequest) -> Response:
    """Watch a key, the keys with a prefix, or all keys of a store."""
    key, prefix = _watched(asked)
    request = query_service_pb2.WatchRequest(
        store=asked.store,
        key=None if key is None else to_key(key),
        prefix=None if prefix is None else to_key(prefix),
        partition=asked.values["partition"],
        freshness=asked.freshness,
        mark_moments=asked.values["by_moment"],
    )
    progress = _resumed(asked)
    await asked.admit(request)
    with ExitStack() as held:
        held.enter_context(asked.gateway.watch_place(asked.request))
        reader = await asked.reader()
        _refuse_too_many(asked, reader)
        reader.ask(request)
        watched = _Watched(asked, request, reader, progress)
        held.callback(watched.end)
        first = await watched.begin()
        return _Events(watched.events(first), progress, held.pop_all())


class _Events(EventSourceResponse):
    """The response. `held`: what is released when it has ended, or could not begin."""

    def __init__(self, events: AsyncIterator[ServerSentEvent], progress: Progress, held: ExitStack) -> None:
        super().__init__(
            events,
            headers={"Cache-Control": "no-store", "Vary": "Authorization"},
            ping=_PING_S,
            # An id without data moves Last-Event-ID on, so that a quiet watch can still be resumed after hours.
            ping_message_factory=lambda: ServerSentEvent(id=progress.id or None, comment="alive"),
            send_timeout=TAKEN_WITHIN_S,
            sep="\n",
        )
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


def _watched(asked: ApiRequest) -> tuple[KeyLike | None, KeyLike | None]:
    """Return the key of the path, or, where the path has none, the prefix of the query string."""
    base64_keys = asked.values["base64_keys"]
    if "key" in asked.path:
        return key_of("key", asked.path["key"], base64_keys=base64_keys), None
    return None, key_of("prefix", asked.values["prefix"], base64_keys=base64_keys)


def _resumed(asked: ApiRequest) -> Progress:
    """Return how far an earlier watch has got, by the header or, for clients that can't send it, the parameter."""
    given = asked.request.headers.get(LAST_EVENT_ID) or asked.values["last_event_id"] or ""
    try:
        return MarkedProgress(given) if asked.values["by_moment"] else Progress(positions_of(given))
    except ValueError as error:
        raise wrong(f"Last-Event-ID: {error}", "last_event_id") from None


def _refuse_too_many(asked: ApiRequest, reader: Reader) -> None:
    if reader.store is None or asked.values["partition"] is not None:
        return
    count = reader.store.partition_count
    if count > PARTITIONS_MAX:
        raise wrong(f"the store has {count} partitions, and a watch {PARTITIONS_MAX} at most: name one", "partition")


class _Watched:
    """A watch that is open. Lives on the event loop."""

    def __init__(
        self, asked: ApiRequest, request: query_service_pb2.WatchRequest, reader: Reader, progress: Progress
    ) -> None:
        self._asked, self._request, self._reader, self._progress = asked, request, reader, progress
        self._stream: _Stream | None = None
        self._failure: LookupFailure | None = None
        self._peer = asked.gateway.routers.current
        self._admitted_at = asyncio.get_running_loop().time()

    async def begin(self) -> query_service_pb2.WatchResponse:
        """Open the watch and return its first response, so that a failure still has its status.

        Raises:
            LookupFailure: it can't be opened.

        """
        try:
            async with asyncio.timeout(self._asked.seconds):
                return await self._next_somewhere()
        except TimeoutError:
            message = f"the watch did not begin within {self._asked.seconds:g} s"
            raise self._failure or LookupFailure(Reason.DEADLINE_EXCEEDED, message) from None

    async def events(self, first: query_service_pb2.WatchResponse) -> AsyncIterator[ServerSentEvent]:
        """Yield events for ever, or until the watch fails."""
        yield ServerSentEvent(retry=RETRY_MS)
        response = first
        try:
            while True:
                for event in self._events_of(response):
                    yield event
                response = await self._next_somewhere()
                await self._admit_again()
        except LookupFailure as failure:
            yield _event("problem", problem_of(self._asked.gateway.told(self._asked.request, failure)))
        except CallerRefused as refused:
            yield _event("problem", problem_of(refused.failure, callers=True))

    def end(self) -> None:
        """Leave."""
        if self._stream is not None:
            self._stream.cancel()

    async def _admit_again(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._admitted_at >= ASKED_AGAIN_S:
            self._admitted_at = now_s
            await self._asked.admit(self._request, again=True)

    async def _next_somewhere(self) -> query_service_pb2.WatchResponse:
        """Return the next response; if the router fails, of another one or of the same one once it is back."""
        loop = asyncio.get_running_loop()
        give_up_at, backoff = loop.time() + _COMES_BACK_WITHIN_S, Backoff(_COMES_BACK)
        while True:
            try:
                return await self._next()
            except LookupFailure as failure:
                self._stream = None
                failure = self._failure = self._peer.named(failure, self._asked.seconds)
                self._asked.gateway.routers.stream_failed(self._peer, failure)
                pause_s = backoff.failed()
                comes_back = is_routers(failure) or failure.reason is Reason.NODE_SHUTTING_DOWN
                if not comes_back or loop.time() + pause_s > give_up_at:
                    raise failure from None
                await asyncio.sleep(pause_s)

    async def _next(self) -> query_service_pb2.WatchResponse:
        is_first = False
        if self._stream is None:
            self._peer = self._asked.gateway.routers.current
            del self._request.resume[:]
            self._request.resume.extend(map(conversion.to_position, self._progress.positions))
            if isinstance(self._progress, MarkedProgress) and self._progress.moment is not None:
                least = types_pb2.Moments(moments=[self._progress.moment])
                self._request.freshness.moment.CopyFrom(types_pb2.MomentBound(at_least=least))
            self._stream = self._peer.watch(self._request)
            is_first = True
        try:
            # A response comes at least every two seconds, changes or not.
            async with asyncio.timeout(max(SILENCE_S, self._asked.seconds)):
                response = await self._stream.read()
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        except TimeoutError:
            self._stream.cancel()
            raise _gone("the router is silent") from None
        except asyncio.CancelledError:
            if is_told_to_end():
                raise
            raise _gone("the connection was closed") from None
        if isinstance(response, query_service_pb2.WatchResponse):
            if is_first and self._request.mark_moments and not response.HasField("mark"):
                self._stream.cancel()
                raise unavailable(self._asked.store, UNMARKED)
            return self._asked.for_caller(response)  # type: ignore[no-any-return] # of the same kind
        raise _gone("the router ended the watch")

    def _events_of(self, response: query_service_pb2.WatchResponse) -> list[ServerSentEvent]:
        if isinstance(self._progress, MarkedProgress) and response.HasField("mark"):
            return self._marked(self._progress, response.mark)
        update = conversion.from_watch(response, self._asked.store)
        self._progress.note(update)
        events = []
        if update.gap:
            events.append(_event("gap", {"partition": update.partition}))
        if update.changes or update.current:
            name = "current" if update.current else "change"
            at = self._progress.id if update.position is not None and not self._request.mark_moments else ""
            events.append(_event(name, _update_body(update, response, self._reader), at))
        return events

    @staticmethod
    def _marked(progress: MarkedProgress, mark: query_service_pb2.WatchMark) -> list[ServerSentEvent]:
        if not mark.HasField("moment"):
            return []
        progress.marked(mark)
        moment = MomentToken({mark.moment.query_id: mark.moment.batch_id})
        body = {"moment": bodies.moment_body(moment), "batch_id": mark.moment.batch_id}
        return [_event("moment", body, progress.id)]


def _gone(message: str) -> LookupFailure:
    return LookupFailure(Reason.UNREACHABLE, message, {"grpc_status": "UNAVAILABLE"})


def _update_body(update: Update, response: query_service_pb2.WatchResponse, reader: Reader) -> dict[str, Any]:
    return {
        "partition": update.partition,
        **({"begins": update.begins} if update.current else {}),
        "changes": [_change_body(each, reader) for each in response.events],
        "position": None if update.position is None else update.position.offset,
        "replica": bodies.stamp_body(update.replica),
        "token": str(update.token),
    }


def _change_body(event: query_service_pb2.WatchEvent, reader: Reader) -> dict[str, Any]:
    return {
        "key": reader.key(event.key),
        "deleted": not event.HasField("value"),
        "value": reader.each(event.value) if event.HasField("value") else None,
        **{
            name: getattr(event, name) if event.HasField(name) else None
            for name in ("offset", "timestamp_ms", "start_ms", "end_ms")
        },
    }


def _event(name: str, body: dict[str, Any], at: str = "") -> ServerSentEvent:
    return ServerSentEvent(json_text.encode(body).decode(), event=name, id=at or None, sep="\n")
