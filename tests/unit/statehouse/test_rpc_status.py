"""How a stream's handler ends whose caller left while a response was being sent."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn, cast

import grpc
import grpc.aio
import pytest
import structlog.testing

from statehouse.rpc.status import Context, failing_cleanly, send_to
from statehouse.v1 import query_service_pb2


class _Unwritable:
    """The context of a call that grpcio can no longer write to; it may still take a status."""

    def __init__(self, *, is_gone: bool) -> None:
        self._is_gone = is_gone

    async def write(self, _response: object) -> None:
        raise grpc.aio.InternalError("the batch failed")

    async def abort(self, code: grpc.StatusCode, _details: str) -> NoReturn:
        raise grpc.aio.InternalError("the batch failed") if self._is_gone else grpc.aio.AbortError(code.name)


class _Unread(_Unwritable):
    """The context of a call whose caller takes nothing."""

    async def write(self, _response: object) -> None:
        await asyncio.Event().wait()

    async def abort_with_status(self, status: grpc.Status) -> NoReturn:
        raise grpc.aio.AbortError(status.code.name)


class _Deaf(_Unread):
    """The same, and not even the end is taken."""

    async def abort_with_status(self, _status: grpc.Status) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.feature("callers-ask-bounded")
async def test_a_caller_who_takes_nothing_loses_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehouse.rpc.status.TAKEN_WITHIN_S", 0.05)
    context = cast("Any", _Unread(is_gone=False))
    with structlog.testing.capture_logs() as logs, pytest.raises(grpc.aio.AbortError, match="RESOURCE_EXHAUSTED"):
        await _stream(None, query_service_pb2.WatchRequest(), context)
    assert not logs


async def test_who_takes_not_even_the_end_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statehouse.rpc.status.TAKEN_WITHIN_S", 0.05)
    monkeypatch.setattr("statehouse.rpc.status._TOLD_WITHIN_S", 0.05)
    with pytest.raises(asyncio.CancelledError):
        await _stream(None, query_service_pb2.WatchRequest(), cast("Any", _Deaf(is_gone=False)))


@failing_cleanly
async def _stream(_self: object, _request: query_service_pb2.WatchRequest, context: Context) -> None:
    await send_to(context)(query_service_pb2.WatchResponse())


@pytest.mark.parametrize(("is_gone", "end"), [(True, asyncio.CancelledError), (False, grpc.aio.AbortError)])
async def test_a_response_that_cannot_be_sent_ends_the_call_and_is_no_defect(
    is_gone: bool, end: type[BaseException]
) -> None:
    context = cast("Any", _Unwritable(is_gone=is_gone))
    with structlog.testing.capture_logs() as logs, pytest.raises(end):
        await _stream(None, query_service_pb2.WatchRequest(), context)
    assert not logs
