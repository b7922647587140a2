"""A watch that a thread reads, with everything that it received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

import grpc

from statehouse.errors import LookupFailure
from statehouse.rpc.failures import from_rpc_error
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.fleet import STORE, ServerProcess
from tests.support.polling import poll_until


class Watcher:
    """Watches through a node or router until it is left.

    `responses`: all that came. `failure`: why the stream ended, if it did.
    """

    def __init__(
        self,
        process: ServerProcess,
        key: str | None = None,
        prefix: str | None = None,
        store: str = STORE,
        **fields: Any,
    ) -> None:
        self.responses: list[query_service_pb2.WatchResponse] = []
        self.failure: LookupFailure | None = None
        request = query_service_pb2.WatchRequest(
            store=store,
            key=None if key is None else types_pb2.Key(text=key),
            prefix=None if prefix is None else types_pb2.Key(text=prefix),
            **fields,
        )
        self._call = process.query.Watch(request, wait_for_ready=True)
        self._thread = threading.Thread(target=self._read, name="watcher", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._call.cancel()
        self._thread.join(10.0)
        assert not self._thread.is_alive()

    def wait_for(self, predicate: Callable[[Self], Any], what: str, timeout_s: float = 20.0) -> Any:
        """Wait until something is true of the watcher; a stream that ended says why."""

        def found() -> Any:
            answer = predicate(self)
            assert answer or self.failure is None, self.failure
            return answer

        return poll_until(found, timeout_s, what)

    @property
    def current(self) -> list[query_service_pb2.WatchResponse]:
        return [response for response in self.responses if response.current]

    @property
    def is_current(self) -> bool:
        """Whether every partition heard of has told a position."""
        heard = {response.replica.partition for response in list(self.responses)}
        return bool(heard) and heard == set(self.positions)

    @property
    def gaps(self) -> int:
        return sum(response.gap for response in list(self.responses))

    @property
    def changes(self) -> list[tuple[int, int, str, str | None]]:
        """Partition, offset, key and value of every change, in the order they came."""
        return [
            (response.replica.partition, event.offset, event.key.text, _text(event))
            for response in list(self.responses)
            if not response.current
            for event in response.events
        ]

    @property
    def values(self) -> list[str | None]:
        """The values of every change."""
        return [value for _, _, _, value in self.changes]

    @property
    def current_values(self) -> dict[str, str | None]:
        """The current values that came last."""
        return {event.key.text: _text(event) for response in self.current for event in response.events}

    @property
    def positions(self) -> Mapping[int, query_service_pb2.WatchPosition]:
        """By partition, where to resume."""
        return {
            response.replica.partition: query_service_pb2.WatchPosition(
                partition=response.replica.partition, position=response.position, topic_id=response.topic_id
            )
            for response in list(self.responses)
            if response.HasField("position")
        }

    @property
    def hosts(self) -> list[str]:
        """The nodes that sent the responses, repetitions left out."""
        names = [response.replica.host.instance_id for response in list(self.responses)]
        return [name for nth, name in enumerate(names) if nth == 0 or name != names[nth - 1]]

    def _read(self) -> None:
        try:
            for response in self._call:
                self.responses.append(response)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                self.failure = from_rpc_error(error)


def _text(event: query_service_pb2.WatchEvent) -> str | None:
    return event.value.text if event.HasField("value") else None
