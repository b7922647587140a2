"""A steady stream of lookups, with a history of each."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import grpc

from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.polling import poll_until


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup: when it was due (monotonic seconds), how long it took from then, and what came of it."""

    request: query_service_pb2.GetRequest
    due_at: float
    took_s: float
    response: query_service_pb2.GetResponse | None
    failure: LookupFailure | None = None

    @property
    def key(self) -> str:
        return self.request.key.text


class LookupLoad:
    """Sends `rate` lookups a second, of keys in turn and whatever became of the ones before, and keeps the history.

    `credentials`: what it shows to the server; None: nothing is encrypted.
    """

    def __init__(
        self,
        target: str,
        store: str,
        keys: Sequence[str],
        rate: float,
        timeout_s: float = 5.0,
        credentials: grpc.ChannelCredentials | None = None,
        *,
        active_only: bool = False,
    ) -> None:
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
        ]
        self._channel = (
            grpc.insecure_channel(target, options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options)
        )
        self._get = query_service_pb2_grpc.QueryServiceStub(self._channel).Get
        self._store, self._keys, self._period_s, self._timeout_s = store, keys, 1 / rate, timeout_s
        self._freshness = types_pb2.Freshness(active_only=active_only)
        self._stop = threading.Event()
        self._pending = threading.Semaphore(0)
        self._sent = 0
        self._thread = threading.Thread(target=self._run, name="lookup-load", daemon=True)
        self._lock = threading.Lock()
        self.history: list[Lookup] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sending and wait for every answer."""
        self._stop.set()
        self._thread.join()
        for _each in range(self._sent):
            assert self._pending.acquire(timeout=self._timeout_s + 5)
        self._channel.close()

    def await_more(self, lookups: int) -> None:
        """Wait until more than so many further lookups have ended."""
        before = len(self.history)
        poll_until(lambda: len(self.history) > before + lookups, 30, f"{lookups} further lookups")

    def _run(self) -> None:
        due_at = time.monotonic()
        for key in itertools.cycle(self._keys):
            if self._stop.wait(max(0.0, due_at - time.monotonic())):
                return
            key_of = types_pb2.Key(text=key)
            request = query_service_pb2.GetRequest(store=self._store, key=key_of, freshness=self._freshness)
            self._send(request, due_at)
            due_at += self._period_s

    def _send(self, request: query_service_pb2.GetRequest, due_at: float) -> None:
        self._sent += 1

        def done(future: Any) -> None:
            took_s = time.monotonic() - due_at
            try:
                lookup = Lookup(request, due_at, took_s, future.result())
            except grpc.RpcError as error:
                lookup = Lookup(request, due_at, took_s, None, from_rpc_error(error))
            with self._lock:
                self.history.append(lookup)
            self._pending.release()

        self._get.future(request, timeout=self._timeout_s).add_done_callback(done)

    def answers(self, since: float = 0.0) -> list[Lookup]:
        """Return what has come back of the lookups due since then."""
        with self._lock:
            return [lookup for lookup in self.history if lookup.due_at >= since]

    @property
    def failures(self) -> list[Lookup]:
        return [lookup for lookup in self.answers() if lookup.response is None]
