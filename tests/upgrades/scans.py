"""Scans of the whole store, page by page, one after the other, by a client that knows all routers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Final, Self

import grpc

from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc
from tests.support.fleet import STORE, ServerProcess

# So that a scan has several pages, and its tokens pass from one router to another, and to nodes of both versions.
_PAGE: Final = 7
_TIMEOUT_S: Final = 10.0
_TRIES: Final = 4
_PAUSE_S: Final = 0.2


class Scans:
    """Scans while entered; each must have exactly the keys that exist.

    `failed` says what went wrong, with the number of the page. Only a router that is away is asked no more for a page.
    """

    def __init__(self, routers: Sequence[ServerProcess], keys: Sequence[str]) -> None:
        self._channels = [router.new_channel() for router in routers]
        self._stubs = itertools.cycle([query_service_pb2_grpc.QueryServiceStub(each) for each in self._channels])
        self._keys = sorted(keys)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scans", daemon=True)
        self.failed: list[str] = []
        self.scans = self.pages = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for channel in self._channels:
            channel.close()

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            try:
                found = self._scan()
            except LookupFailure as failure:
                self.failed.append(f"{failure.reason.name}: {failure.message}")
                continue
            self.scans += 1
            if found != self._keys:
                self.failed.append(f"{len(found)} keys instead of {len(self._keys)}, or in another order")

    def _scan(self) -> list[str]:
        request = query_service_pb2.ScanRequest(store=STORE, page_size=_PAGE)
        found: list[str] = []
        while True:
            page = self._page(request)
            self.pages += 1
            found += [entry.key.text for entry in page.entries]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return found

    def _page(self, request: query_service_pb2.ScanRequest) -> query_service_pb2.ScanResponse:
        """Ask one router after the other until one is there."""
        for _ in range(_TRIES):
            try:
                page: query_service_pb2.ScanResponse = next(self._stubs).Scan(request, timeout=_TIMEOUT_S)
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise failure from error
            else:
                return page
            self._stop.wait(_PAUSE_S)
        raise failure
