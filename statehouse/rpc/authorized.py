"""A server whose calls are admitted before anything is done for them, by what their callers show."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final, Protocol
from urllib.parse import unquote

import grpc
import grpc.aio

from statehouse.errors import LookupFailure, Reason
from statehouse.rpc.requests import AdaptingServer, GrpcHandler, ServicesServer, Unreadable, readable, refuse_unreadable
from statehouse.rpc.status import Context, end_with
from statehouse.security.shown import Shown

ASKED_AGAIN_S: Final = 1.0
"""How often it is asked whether a stream may go on: a caller that loses a right loses the streams that it allowed. If a
call's answer takes longer, it is asked once more before the answer is given."""

CERTIFICATE_KEY: Final = "statehouse-certificate-bin"
"""What a caller has shown, in DER: the certificate, and after it those that were shown with it."""
ADDRESS_KEY: Final = "statehouse-address"
"""Metadata by which the proxy hands on what callers have shown to it. It removes them from what callers send."""
ON_BEHALF_KEY: Final = "on-behalf-of-bin"
"""Metadata in which a web process shows its caller's certificate to a node. Known to dataplane/caller.go."""
ON_BEHALF_CHAIN_KEY: Final = "on-behalf-of-chain-bin"
"""Those that were shown with it. Versions before this one send and take the certificate alone."""
_AUTHORIZATION_KEY: Final = "authorization"
_PEM_END: Final = "-----END CERTIFICATE-----"

ShownIn = Callable[[Context], Shown]


class CallCheck(Protocol):
    """Returns if a call is allowed, else raises a `LookupFailure`."""

    def __call__(self, method: str, request: Any, shown: Shown, *, again: bool = False) -> None:  # noqa: ANN401 - of any method
        """`method`: its path. `request`: None if there is none yet. `again`: the call is under way."""


class AuthorizedServer(AdaptingServer):
    """The part of a server that services are added to; each call of theirs is admitted first, and then read.

    For a stream `admit` is asked again each `ASKED_AGAIN_S`. `only`: the paths of the methods that it is asked about;
    without it, all.
    """

    def __init__(
        self, server: ServicesServer, admit: CallCheck, shown_in: ShownIn, only: Collection[str] | None = None
    ) -> None:
        super().__init__(server)
        self._admit, self._shown_in, self._only = admit, shown_in, only

    def _adapted(self, path: str, handler: GrpcHandler) -> GrpcHandler:
        if self._only is not None and path not in self._only:
            return handler
        ends = (handler.request_deserializer, handler.response_serializer)
        if handler.request_streaming:  # only reflection has such a method
            return grpc.stream_stream_rpc_method_handler(self._conversation(path, handler.stream_stream), *ends)
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(self._stream(path, handler.unary_stream), *ends)
        return grpc.unary_unary_rpc_method_handler(self._call(path, handler.unary_unary), *ends)

    async def _pass(self, path: str, request: object, context: Context, *, again: bool = False) -> None:
        """Return if a call is admitted and can be read, else end it."""
        try:
            self._ask(path, request, context, again=again)
        except LookupFailure as failure:
            await end_with(context, path, failure)

    def _ask(self, path: str, request: object, context: Context, *, again: bool) -> None:
        """Return if a call is admitted and can be read.

        Raises:
            LookupFailure: it isn't, or can't.

        """
        asked = None if isinstance(request, Unreadable) else request
        self._admit(path, asked, self._shown_in(context), again=again)
        refuse_unreadable(request)

    def _call(self, path: str, behaviour: Any) -> Any:  # noqa: ANN401 - of any messages
        async def call(request: object, context: Context) -> Any:  # noqa: ANN401 - as above
            await self._pass(path, request, context)
            began = time.monotonic()
            answer = await behaviour(request, context)
            if time.monotonic() - began > ASKED_AGAIN_S:
                await self._pass(path, request, context, again=True)
            return answer

        return call

    def _stream(self, path: str, behaviour: Any) -> Any:  # noqa: ANN401 - as above
        async def stream(request: object, context: Context) -> None:
            await self._pass(path, request, context)
            work = asyncio.ensure_future(behaviour(request, context))
            try:
                while not (await asyncio.wait({work}, timeout=ASKED_AGAIN_S))[0]:
                    self._ask(path, request, context, again=True)
            except LookupFailure as failure:
                # First of all: to send something on a call that has ended would look like a defect.
                await _cancelled(work)
                await end_with(context, path, failure)
            finally:
                await _cancelled(work)
            work.result()

        return stream

    def _conversation(self, path: str, behaviour: Any) -> Any:  # noqa: ANN401 - as above
        async def conversation(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            await self._pass(path, None, context)
            try:
                async for response in behaviour(readable(requests), context):
                    await self._pass(path, None, context, again=True)
                    yield response
            except LookupFailure as failure:
                await end_with(context, path, failure)

        return conversation


async def _cancelled(work: asyncio.Future[None]) -> None:
    """Cancel work that isn't done, and wait for its end."""
    if not work.done():
        work.cancel()
        await asyncio.wait({work})


async def asked_again(answer: Awaitable[bytes], ask: Callable[[], None]) -> bytes:
    """Return an answer; what `ask` raises, if it took so long that the caller may have lost the right to it."""
    began = time.monotonic()
    found = await answer
    if time.monotonic() - began > ASKED_AGAIN_S:
        ask()
    return found


def shown_to_proxy(context: Context) -> Shown:
    """Return what a caller has shown to the proxy, who hands it on.

    Raises:
        LookupFailure: UNAUTHENTICATED, there is more than one authorization, or more than one other is shown.

    """
    found = dict(context.invocation_metadata() or ())
    certificate = _bytes(found.get(CERTIFICATE_KEY, b""))
    return Shown(certificate, _authorization(context), _text(found.get(ADDRESS_KEY, "")), _on_behalf(context))


def shown_directly(context: Context) -> Shown:
    """Return what a caller has shown to grpcio.

    Raises:
        LookupFailure: as above.

    """
    known = context.auth_context()
    own, shown_with_it = (next(iter(known.get(key, ())), b"") for key in ("x509_pem_cert", "x509_pem_cert_chain"))
    certificate = ders_of(own + shown_with_it.removeprefix(own))
    return Shown(certificate, _authorization(context), _host_of(context.peer()), _on_behalf(context))


def address_of(context: Context) -> str:
    """Return the address that a call comes from, whether grpcio or the proxy has taken it; empty if it isn't known."""
    peer = context.peer()
    if not peer.startswith("unix:"):
        return _host_of(peer)
    # That is the proxy: nobody else can connect there, and it lets no caller say where they are.
    return _text(dict(context.invocation_metadata() or ()).get(ADDRESS_KEY, ""))


def ders_of(pem: bytes) -> bytes:
    """Return certificates in DER, one after another, that are given in PEM."""
    parts = pem.decode().split(_PEM_END)[:-1]
    return b"".join(ssl.PEM_cert_to_DER_cert(part.strip() + _PEM_END) for part in parts)


def _authorization(context: Context) -> str:
    given = _once(context, _AUTHORIZATION_KEY)
    return "" if given is None else _text(given)


def _on_behalf(context: Context) -> bytes:
    """Return the other's certificate, and those that were shown with it, that a caller shows."""
    certificate = _once(context, ON_BEHALF_KEY)
    if certificate is None:
        return b""
    # Empty is something else than nothing: then it is no certificate.
    return (_bytes(certificate) or b"\0") + _bytes(_once(context, ON_BEHALF_CHAIN_KEY) or b"")


def _once(context: Context, name: str) -> str | bytes | None:
    """Return the value of this name in a call's metadata."""
    given = [value for key, value in context.invocation_metadata() or () if key == name]
    if len(given) > 1:  # which of them counts must not depend on who reads them
        raise LookupFailure(Reason.UNAUTHENTICATED, f"the call has {name} more than once: give it once")
    return given[0] if given else None


def _host_of(peer: str) -> str:
    """Return the address in what grpcio calls a peer, such as `ipv6:%5B::1%5D:40000`."""
    _, _, place = unquote(peer).partition(":")
    return place.rpartition(":")[0].strip("[]")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1")
