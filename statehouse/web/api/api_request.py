"""One request to the API: what it asks, and how its call is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from statehouse.client import conversion
from statehouse.keys.columns import columns_of_text, key_text
from statehouse.runtime.request_target import check_escapes
from statehouse.security.concealed import concealed_message
from statehouse.v1 import types_pb2
from statehouse.web.api import json_text
from statehouse.web.api.bodies import Reader
from statehouse.web.api.parameters import Values, freshness_of, key_of, wrong
from statehouse.web.api.problems import MEDIA_TYPE, headers_of
from statehouse.web.api.stores import KnownStores
from statehouse.web.gateway import Gateway

_PARAMETERS_MAX = 100


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request whose parameters have been read.

    `path`: what stands in the place of the path's names. `call`: the gRPC method that the rules are asked about.
    """

    gateway: Gateway
    stores: KnownStores
    request: Request
    call: str
    path: Mapping[str, str]
    values: Values

    @property
    def store(self) -> str:
        """The store's name."""
        return self.path["store"]

    @property
    def key(self) -> str | bytes:
        """The key in the path: text, or serialized bytes.

        Raises:
            LookupFailure: INVALID_KEY, it is no base64.

        """
        found = key_of("key", self.path["key"], base64_keys=self.values["base64_keys"])
        assert found is not None  # noqa: S101 - the path has one
        return found

    async def key_of_columns(self, text: str) -> str:
        """Return the key that a text names by its columns. Ask this once the caller may make the call.

        Raises:
            LookupFailure: INVALID_KEY, or no router answers.

        """
        store = await self.stores.find(self.store, self.seconds)
        columns = () if store is None else conversion.from_key_columns(store)
        return key_text(self.store, columns, columns_of_text(text))

    @property
    def seconds(self) -> float:
        """Longest time that the request may take."""
        settings = self.gateway.settings
        wanted = self.values.get("timeout_ms") or settings.request_timeout_ms
        return min(wanted, settings.max_timeout_ms) / 1_000

    @property
    def freshness(self) -> types_pb2.Freshness | None:
        """The bounds on the wire.

        Raises:
            LookupFailure: INVALID_REQUEST.

        """
        return conversion.to_freshness(freshness_of(self.values), self.store)

    async def admit(self, about: Message, *, again: bool = False) -> None:
        """Return if the caller may make the call `about`.

        Raises:
            CallerRefused: the rules don't allow it.

        """
        await self.gateway.authorise(self.request, self.call, about, again=again)

    async def reader(self) -> Reader:
        """Return how values are shown. Ask this once the caller is admitted.

        Raises:
            LookupFailure: no router answers.

        """
        return Reader(await self.stores.find(self.store, self.seconds), self.values["raw"])

    async def make(self, request: Message) -> Any:  # noqa: ANN401 - the method's response
        """Make the call of QueryService that takes this request. Who may not see the fleet gets no addresses.

        Raises:
            LookupFailure: it failed.

        """
        method = _method_of(request)
        call = self.gateway.routers.make(lambda query: getattr(query, method), request, self.seconds)
        return self.for_caller(await call)

    async def ask(self, request: Message) -> Any:  # noqa: ANN401 - as above
        """Make the call of FleetService that takes this request; likewise.

        Raises:
            LookupFailure: it failed.

        """
        method = _method_of(request)
        call = self.gateway.ask(lambda peer, s: getattr(peer.fleet, method)(request, timeout=s), self.seconds)
        return self.for_caller(await call)

    def for_caller(self, response: Message) -> Any:  # noqa: ANN401 - as above
        """Return a response as the caller may see it."""
        return concealed_message(response) if self.gateway.conceals(self.request) else response

    def url_with(self, **parameters: str) -> str:
        """Return the request's path and query with other values of these parameters."""
        kept = [(name, value) for name, value in query_of(self.request) if name not in parameters]
        raw_path = self.request.scope.get("raw_path") or self.request.scope["path"].encode()
        return f"{raw_path.decode('ascii')}?{urlencode([*kept, *parameters.items()])}"


def _method_of(request: Message) -> str:
    return type(request).__name__.removesuffix("Request")


def query_of(request: Request) -> list[tuple[str, str]]:
    """Return the names and values of a query string.

    Raises:
        LookupFailure: INVALID_REQUEST, it is no text, or has too many.

    """
    try:
        text = request.scope["query_string"].decode("ascii")
        check_escapes(text)
        return parse_qsl(
            text,
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMETERS_MAX,
        )
    except ValueError:
        raise wrong(
            f"the query string must be percent-encoded UTF-8 with at most {_PARAMETERS_MAX} parameters"
        ) from None


def json_response(body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer. It holds for its caller and this moment: caches must ask again."""
    media_type = "application/json" if status < 400 else MEDIA_TYPE
    always = {"Cache-Control": "private, no-cache", "Vary": "Authorization", **headers_of(status)}
    return Response(json_text.encode(body), status, {**always, **(headers or {})}, media_type)
