"""The routes of the API."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from statehouse.errors import LookupFailure, Reason
from statehouse.web.api.api_request import ApiRequest, json_response, query_of
from statehouse.web.api.openapi import document
from statehouse.web.api.operations import OPERATIONS, Operation
from statehouse.web.api.parameters import read_parameters
from statehouse.web.api.stores import KnownStores
from statehouse.web.gateway import Gateway
from statehouse.web.raw_routes import UNREADABLE, RawRoute

ROOT_PATH = "/v1"
DOCUMENT_PATH = "/v1/openapi.json"


def api_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the API's routes. Failures are raised: the application makes problems of them."""
    stores = KnownStores(gateway)
    gateway.on_close(stores.close)

    async def openapi(_request: Request) -> Response:
        return Response(document(), media_type="application/json")

    return [
        RawRoute(ROOT_PATH, _root, methods=["GET"], name="root"),
        RawRoute(DOCUMENT_PATH, openapi, methods=["GET"], name="openapi"),
        *(_route(gateway, stores, each) for each in OPERATIONS),
    ]


async def _root(_request: Request) -> Response:
    """Say what this API is, and where to go on. Everybody may ask, as for the OpenAPI document."""
    return json_response(
        {
            "name": "Statehouse",
            "version": version("statehouse"),
            "description": "Reads the stores of a fleet.",
            "openapi": DOCUMENT_PATH,
            "stores": "/v1/stores",
        }
    )


def _route(gateway: Gateway, stores: KnownStores, operation: Operation) -> BaseRoute:
    async def endpoint(request: Request) -> Response:
        unreadable = getattr(request.state, UNREADABLE, None)
        if unreadable is not None:
            raise LookupFailure(
                Reason.INVALID_KEY if unreadable == "key" else Reason.INVALID_REQUEST,
                f"{unreadable} in the path is no percent-encoded UTF-8; give bytes in base64, with base64_keys",
            )
        values = read_parameters(operation.parameters, query_of(request))
        asked = ApiRequest(gateway, stores, request, operation.call, request.path_params, values)
        if values.get("columns") and "key" in asked.path:
            # Before the caller hears of the store's columns.
            await gateway.authorise(request, operation.call, asked.store)
            asked = replace(asked, path={**asked.path, "key": await asked.key_of_columns(asked.path["key"])})
        return await operation.handle(asked)

    return RawRoute(
        operation.path, endpoint, methods=[operation.method], name=operation.name, head=operation.answer is not None
    )
