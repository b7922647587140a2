"""Reads of single keys: straight to the node that holds the key where that is possible, else through the router.

A lookup makes one attempt at a node, then goes through the router in the time that is left; the caller sees one call.
Lookups made at the same time are coalesced on both paths.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from statehouse.client import batches, conversion
from statehouse.client.answers import Answer, AnyKey
from statehouse.client.batches import LookupOutcome
from statehouse.client.keys import KeyForm, needs_serde, to_key
from statehouse.client.lookup_queue import LookupQueue, QueuedLookup
from statehouse.client.moments import is_unshown, shown_by, unshown
from statehouse.client.node_connections import ConnectedRoute, NodeConnection, NodeConnections, may_help_elsewhere
from statehouse.client.peers import Method
from statehouse.client.routers import Routers, too_late
from statehouse.client.store_frame import named_store
from statehouse.contract.agreement import Agreement, ask_for, is_gone
from statehouse.contract.moments import MomentBound
from statehouse.contract.version_names import plain_store, version_of
from statehouse.errors import LookupFailure, Reason
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2

if TYPE_CHECKING:
    from statehouse.client.spans import LookupSpans

_SWITCHES_MAX: Final = 3
"""How often a batch is asked again as its answers are of several versions."""
FORMS_KEPT_S: Final = 30.0
"""What is known of a store's keys is taken so long: one of the same name may be made anew, with another serde."""
# What a server says that has no list of stores, as a node, and one that doesn't show it to this caller.
_UNTOLD: Final = frozenset({"UNIMPLEMENTED", "PERMISSION_DENIED"})


# Bounds on the moment for which replicas wait.
_MAY_WAIT: Final = frozenset({"at_least", "exactly"})


class _KeyedRequest(Protocol):
    """The fields that all requests about one key have in common."""

    store: str

    @property
    def key(self) -> types_pb2.Key: ...
    @property
    def freshness(self) -> types_pb2.Freshness: ...
    @property
    def forwarding(self) -> types_pb2.Forwarding: ...

    def ClearField(self, field_name: Any, /) -> None: ...  # noqa: ANN401, N802 - protobuf's


class _Stamped(Protocol):
    """The field that all answers about one key have in common."""

    @property
    def replica(self) -> types_pb2.ReplicaStamp: ...


Request = TypeVar("Request", bound=_KeyedRequest)
Response = TypeVar("Response", bound=_Stamped)


class KeyReads:
    """Reads single keys. Lives on the event loop.

    Without `nodes` every read goes through the router, and without `spans` there are none.
    """

    def __init__(
        self,
        router: Routers,
        nodes: NodeConnections | None,
        max_message_bytes: int,
        spans: LookupSpans | None = None,
    ) -> None:
        self._spans = spans
        self._router, self._nodes, self._max_message_bytes = router, nodes, max_message_bytes
        self._queue = LookupQueue(self._send, max_message_bytes)
        self._key_forms: Mapping[str, KeyForm] = {}
        self._forms_asked_at = float("-inf")

    async def wire_key(self, store: str, key: AnyKey, seconds: float) -> types_pb2.Key:
        """Return a key as requests have it. For a number or columns, the fleet is asked how keys are written.

        Raises:
            TypeError: the store's keys aren't of this type, or nobody says what they are.
            LookupFailure: INVALID_KEY, UNKNOWN_STORE, or nobody could answer in time.

        """
        return to_key(key, await self._key_form(store, seconds) if needs_serde(key) else None)

    async def wire_keys(
        self, keys: Sequence[tuple[str, AnyKey]], seconds: float
    ) -> list[types_pb2.Key | LookupFailure]:
        """Do the same for the keys of several lookups, each with its store; a failure is one key's.

        Raises:
            TypeError: as above.

        """
        forms: dict[str, KeyForm | LookupFailure] = {}
        for store in dict.fromkeys(store for store, key in keys if needs_serde(key)):
            try:
                forms[store] = await self._key_form(store, seconds)
            except LookupFailure as failure:
                forms[store] = failure
        found: list[types_pb2.Key | LookupFailure] = []
        for store, key in keys:
            form = forms.get(store)
            try:
                if isinstance(form, LookupFailure):
                    found.append(form if needs_serde(key) else to_key(key))
                else:
                    found.append(to_key(key, form))
            except LookupFailure as failure:
                found.append(failure)
        return found

    async def get(self, request: query_service_pb2.GetRequest, seconds: float) -> Answer:
        """Look one key up.

        Raises:
            LookupFailure: nobody could answer in time.

        """
        if self._spans is None:
            return await self._get(request, seconds)
        with self._spans.read(request) as span:
            answer = await self._get(request, seconds)
            self._spans.note(span, answer)
            return answer

    async def _get(self, request: query_service_pb2.GetRequest, seconds: float) -> Answer:
        give_up_at = asyncio.get_running_loop().time() + seconds
        refusal: LookupFailure | None = None
        try:
            route = self._route(request)
            if route is not None:
                outcome = await route.get(request, give_up_at)
                if is_unshown(request, outcome):
                    outcome = unshown(request.store)  # a router knows others
                if isinstance(outcome, Answer):
                    return outcome
                if not may_help_elsewhere(outcome):
                    raise _own(outcome)
                refusal = outcome
                _for_router(request)
            outcome = await self._through_router(request, give_up_at)
        except TimeoutError:
            target = self._router.current.target
            raise too_late(target, seconds, {"target": target}) from refusal
        if is_unshown(request, outcome):
            raise unshown(request.store) from refusal
        if isinstance(outcome, Answer):
            return outcome
        raise _own(outcome) from refusal

    async def batch_get(self, requests: Sequence[query_service_pb2.GetRequest], seconds: float) -> list[LookupOutcome]:
        """Look several keys up; return one outcome per key. Too many keys are split into calls of `seconds` each.

        Answers that are to be of a moment are of one batch of each query.
        """
        with nullcontext() if self._spans is None else self._spans.batch(requests):
            outcomes = await self._batch_get(requests, seconds)
            for query_id, indexes in _of_queries(requests, outcomes).items():
                await self._agree(query_id, indexes, requests, outcomes, seconds)
            return outcomes

    async def _agree(
        self,
        query_id: str,
        asked: Sequence[int],
        requests: Sequence[query_service_pb2.GetRequest],
        outcomes: list[LookupOutcome],
        seconds: float,
    ) -> None:
        """Look keys up again until all answers are of the same batch of a query; put them in their places."""
        bounds = [MomentBound.from_proto(requests[index].freshness.moment) for index in asked]
        agreement = Agreement[int](query_id, bounds)
        while True:
            for index in asked:
                outcome = outcomes[index]
                if isinstance(outcome, Answer) or is_gone(outcome):
                    moment = outcome.moment if isinstance(outcome, Answer) else None
                    agreement.shows(
                        index, _name(requests[index], outcome), None if moment is None else moment.batch(query_id)
                    )
                else:
                    agreement.leaves(index)
            try:
                step = agreement.next()
            except LookupFailure as failure:
                for index in agreement.parts:
                    outcomes[index] = failure
                return
            if step is None:
                return
            asked, bound = step
            for index in asked:
                ask_for(requests[index].freshness, bound)
            again = await self._batch_get([requests[index] for index in asked], seconds)
            for index, outcome in zip(asked, again, strict=True):
                outcomes[index] = outcome

    async def _batch_get(self, requests: Sequence[query_service_pb2.GetRequest], seconds: float) -> list[LookupOutcome]:
        outcomes = await self._asked_once(requests, seconds)
        for _ in range(_SWITCHES_MAX):
            mixed = _of_several_versions(requests, outcomes)
            if not mixed:
                break
            for index in mixed:
                _for_router(requests[index])
            again = await self._routed([requests[index] for index in mixed], seconds)
            for index, outcome in zip(mixed, again, strict=True):
                outcomes[index] = outcome
        for index in _of_several_versions(requests, outcomes):
            outcomes[index] = LookupFailure(Reason.VERSION_CHANGED, "other versions serve all the time: try again")
        return outcomes

    async def _asked_once(
        self, requests: Sequence[query_service_pb2.GetRequest], seconds: float
    ) -> list[LookupOutcome]:
        outcomes = await self._straight(requests, seconds)
        rest = [index for index, request in enumerate(requests) if _is_open(request, outcomes.get(index))]
        for index in rest:
            _for_router(requests[index])
        routed = await self._routed([requests[index] for index in rest], seconds)
        outcomes.update(zip(rest, routed, strict=True))
        return [
            unshown(request.store) if is_unshown(request, outcomes[index]) else outcomes[index]
            for index, request in enumerate(requests)
        ]

    async def _routed(self, requests: Sequence[query_service_pb2.GetRequest], seconds: float) -> list[LookupOutcome]:
        async def ask(batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
            return await self._router.ask(lambda peer, left_s: peer.query.BatchGet(batch, timeout=left_s), seconds)

        return await batches.batch_get(requests, ask, self._max_message_bytes)

    async def call(self, method: Method[Request, Response], request: Request, seconds: float) -> Response:
        """Make any call about one key.

        Raises:
            LookupFailure: nobody could answer in time.

        """
        with nullcontext() if self._spans is None else self._spans.read(request):
            return await self._call(method, request, seconds)

    async def _call(self, method: Method[Request, Response], request: Request, seconds: float) -> Response:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + seconds
        route = self._route(request)
        if route is not None:
            request.forwarding.epoch = route.epoch
            try:
                return _showing(
                    request,
                    await route.connection.attempt(lambda query, s: method(query)(request, timeout=s), give_up_at),
                )
            except LookupFailure as failure:
                route.note(failure)
                if not may_help_elsewhere(failure):
                    raise
            _for_router(request)
        return _showing(request, await self._router.make(method, request, max(0.0, give_up_at - loop.time())))

    async def close(self) -> None:
        """End; lookups under way fail."""
        if self._nodes is not None:
            await self._nodes.close()
        await self._queue.close()

    def _route(self, request: _KeyedRequest) -> ConnectedRoute | None:
        return None if self._nodes is None else self._nodes.route(request.store, request.key)

    async def _key_form(self, store: str, seconds: float) -> KeyForm:
        """Return the form of a store's keys, as the fleet was last described, or as it is listed.

        Raises:
            TypeError: the server doesn't say: so callers must give text or bytes.
            LookupFailure: UNKNOWN_STORE; or no router answers.

        """
        followed = None if self._nodes is None else self._nodes.key_form(store)
        if followed is not None:
            return followed
        if plain_store(store) in self._key_forms and time.monotonic() - self._forms_asked_at < FORMS_KEPT_S:
            return self._key_forms[plain_store(store)]
        request = fleet_service_pb2.ListStoresRequest()
        try:
            listed = await self._router.ask(
                lambda peer, left_s: peer.fleet.ListStores(request, timeout=left_s), seconds
            )
        except LookupFailure as failure:
            if failure.reason is Reason.PERMISSION_DENIED or failure.metadata.get("grpc_status") in _UNTOLD:
                raise TypeError(
                    f"{self._router.target} doesn't say which key serde store {store} has ({failure.message}): give "
                    "the key as text or as its serialized bytes"
                ) from failure
            raise
        stores = conversion.from_stores(listed)
        self._key_forms = {each.name: KeyForm(each.name, each.key_serde, each.key_columns) for each in stores}
        self._forms_asked_at = time.monotonic()
        return self._key_forms[named_store(stores, plain_store(store)).name]

    async def _straight(
        self, requests: Sequence[query_service_pb2.GetRequest], seconds: float
    ) -> dict[int, LookupOutcome]:
        """Ask each node once for the keys that it holds; return the outcomes by index."""
        give_up_at = asyncio.get_running_loop().time() + seconds
        routes: dict[int, ConnectedRoute] = {}
        for index, request in enumerate(requests):
            if (route := self._route(request)) is not None:
                request.forwarding.epoch = route.epoch
                routes[index] = route
        by_node: defaultdict[NodeConnection, list[int]] = defaultdict(list)
        for index, route in routes.items():
            by_node[route.connection].append(index)
        async with asyncio.TaskGroup() as group:
            asked = [
                (indexes, group.create_task(connection.batch_get([requests[each] for each in indexes], give_up_at)))
                for connection, indexes in by_node.items()
            ]
        outcomes: dict[int, LookupOutcome] = {}
        for indexes, task in asked:
            outcomes.update(zip(indexes, task.result(), strict=True))
        for index, outcome in outcomes.items():
            routes[index].note(outcome)
        return outcomes

    async def _through_router(self, request: query_service_pb2.GetRequest, give_up_at: float) -> LookupOutcome:
        if request.freshness.HasField("at_least") or request.freshness.moment.WhichOneof("bound") in _MAY_WAIT:
            # It may have to wait for a position, or a batch, and every lookup in the same call would wait with it.
            async with asyncio.timeout_at(give_up_at):
                (outcome,) = await self._ask_router([request], give_up_at)
            return outcome
        return await self._queue.ask(request, give_up_at)

    async def _send(self, lookups: Sequence[QueuedLookup]) -> list[LookupOutcome]:
        return await self._ask_router([each.request for each in lookups], max(each.give_up_at for each in lookups))

    async def _ask_router(self, requests: list[query_service_pb2.GetRequest], give_up_at: float) -> list[LookupOutcome]:
        loop, router = asyncio.get_running_loop(), self._router

        def left_s() -> float:
            return max(0.0, give_up_at - loop.time())

        async def ask(batch: query_service_pb2.BatchGetRequest) -> query_service_pb2.BatchGetResponse:
            return await router.ask(lambda peer, s: peer.query.BatchGet(batch, timeout=s), left_s())

        if len(requests) > 1:
            return await batches.batch_get(requests, ask, self._max_message_bytes)
        (request,) = requests
        try:
            response = await router.ask(lambda peer, s: peer.query.Get(request, timeout=s), left_s())
        except LookupFailure as failure:
            return [failure]
        return [conversion.from_get(response, request.store)]


def _showing(request: _KeyedRequest, response: Response) -> Response:
    """Return an answer that shows the moment, if the request asks for one; raises as `shown_by`."""
    shown_by(request.store, request.freshness, (response.replica,))
    return response


def _is_open(request: query_service_pb2.GetRequest, outcome: LookupOutcome | None) -> bool:
    """Whether the router must answer this lookup."""
    if outcome is None or is_unshown(request, outcome):
        return True
    return isinstance(outcome, LookupFailure) and may_help_elsewhere(outcome)


def _of_queries(
    requests: Sequence[query_service_pb2.GetRequest], outcomes: Sequence[LookupOutcome]
) -> dict[str, list[int]]:
    """Return the lookups that must agree on a batch, by query: not those that ask for exactly one."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, (request, outcome) in enumerate(zip(requests, outcomes, strict=True)):
        if not request.freshness.HasField("moment") or not isinstance(outcome, Answer) or outcome.moment is None:
            continue
        (query_id,) = outcome.moment
        if MomentBound.from_proto(request.freshness.moment).exactly(query_id) is None:
            found[query_id].append(index)
    return found


def _of_several_versions(
    requests: Sequence[query_service_pb2.GetRequest], outcomes: Sequence[LookupOutcome]
) -> list[int]:
    """Return the lookups that were answered while versions changed: if not all answers are of one, then all of them.

    Not those that name a version.
    """
    answered = {
        index: outcome.version
        for index, (request, outcome) in enumerate(zip(requests, outcomes, strict=True))
        if isinstance(outcome, Answer) and not version_of(request.store)
    }
    return list(answered) if len(set(answered.values())) > 1 else []


def _name(request: query_service_pb2.GetRequest, outcome: LookupOutcome) -> str:
    """Return what a lookup is of, for people."""
    return request.store if isinstance(outcome, LookupFailure) else f"{request.store}, partition {outcome.partition}"


def _for_router(request: _KeyedRequest) -> None:
    """Take back what was said to a node, but for the span."""
    traceparent = request.forwarding.traceparent
    request.ClearField("forwarding")
    if traceparent:
        request.forwarding.traceparent = traceparent


def _own(failure: LookupFailure) -> LookupFailure:
    """Return a copy of the failure: lookups share their call's failure, but each needs its own exception to raise."""
    return LookupFailure.from_proto(failure.to_proto())
