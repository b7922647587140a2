"""What a scene is asked: calls of every method, right and wrong ones, drawn by a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from google.protobuf.message import Message

from statehouse.contract.paging import next_page_token
from statehouse.contract.topology import StoreSpec
from statehouse.v1 import query_service_pb2, types_pb2
from tests.conformance.scene import EPOCH, Scene
from tests.conformance.scenes import HOUR, MINUTE, ODD_KEYS, T0
from tests.conformance.subject import MAX_BATCH_ENTRIES, request_type

_KEYED: Final = ("Get", "FetchWindows", "FetchSessions", "GetAsOf", "GetHistory")
_RANGED: Final = ("Scan", "ScanWindows", "ScanSessions", "Count")
_OWN: Final = {
    "key-value": ("Get", "Scan", "Count", "BatchGet"),
    "window": ("FetchWindows", "ScanWindows", "Count"),
    "session": ("FetchSessions", "ScanSessions", "Count"),
    "versioned": ("Get", "GetAsOf", "GetHistory", "Scan", "Count", "BatchGet"),
}
_TIMES: Final = (-1, 0, T0 - 1, T0, T0 + 90 * MINUTE, T0 + 100 * MINUTE, T0 + 140 * MINUTE, T0 + 10 * HOUR, 2**63 - 1)

_TEXTS: Final = ("key-00", "absent", "", "0", "-1", "+1", "01", "256 ", "[1]", '{"a": 1}', "\0")


class Calls:
    """Draws calls. The same seed draws the same ones for ever: answers to them are recorded."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene, self._draw = scene, random.Random(seed)

    def __iter__(self) -> Iterator[tuple[str, Message]]:
        """Yield method and request without end."""
        while True:
            yield self._call()

    def _chance(self, percent: int) -> bool:
        return self._draw.randrange(100) < percent

    def _call(self) -> tuple[str, Message]:
        spec = self._draw.choice(self._scene.stores)
        method = self._draw.choice(_OWN[spec.kind] if self._chance(92) else (*_KEYED, *_RANGED))
        if method == "BatchGet":
            several = range(MAX_BATCH_ENTRIES + 1 if self._chance(1) else self._draw.choice((0, 1, 2, 9, 9, 18, 40)))
            lookup = self._plain if self._chance(30) else lambda spec: self._keyed("Get", spec)
            requests = [lookup(self._draw.choice(self._scene.stores)) for _ in several]
            return method, query_service_pb2.BatchGetRequest(requests=requests)
        request = self._keyed(method, spec) if method in _KEYED else self._ranged(method, spec)
        if "page_token" in request.DESCRIPTOR.fields_by_name:
            self._go_on(request, spec)
        return method, request

    def _plain(self, spec: StoreSpec) -> query_service_pb2.GetRequest:
        return query_service_pb2.GetRequest(store=spec.name, key=self._key(spec))

    def _keyed(self, method: str, spec: StoreSpec) -> Any:
        request: Any = request_type(method)(store=spec.name if self._chance(98) else "nowhere")
        if self._chance(98):
            request.key.CopyFrom(self._key(spec))
        if method == "GetAsOf" and self._chance(90):
            request.as_of_ms = self._draw.choice(_TIMES)
        self._shown(request)
        self._timed(request)
        self._bound(request, spec)
        return request

    def _ranged(self, method: str, spec: StoreSpec) -> Any:
        request: Any = request_type(method)(store=spec.name if self._chance(98) else "nowhere")
        if method == "Count":
            request.exact = self._chance(80)
        else:
            has_prefix = self._chance(15)
            if has_prefix:
                request.prefix.CopyFrom(self._prefix(spec))
            for name in ("from_key", "to_key"):
                if self._chance(3 if has_prefix else 25):
                    getattr(request, name).CopyFrom(self._key(spec))
            if method == "Scan" and self._chance(30 if spec.kind == "versioned" else 3):
                request.as_of_ms = self._draw.choice(_TIMES)
        self._place(request, spec)
        if method != "Count":
            self._shown(request)
            self._timed(request)
        self._bound(request, spec)
        return request

    def _place(self, request: Any, spec: StoreSpec) -> None:
        """Name the partitions to read."""
        count = spec.partition_count
        if "partitions" in request.DESCRIPTOR.fields_by_name and self._chance(40):
            request.partitions.extend(self._draw.sample(range(count), self._draw.randrange(count + 1)))
            if self._chance(4):
                request.partitions.append(self._draw.randrange(count + 1))
        elif self._chance(30 if spec.is_global else 97):
            request.partition = count if self._chance(3) else self._draw.randrange(count)

    def _key(self, spec: StoreSpec) -> types_pb2.Key:
        if self._chance(8):
            return types_pb2.Key(raw=self._draw.choice((*ODD_KEYS, b"\0" * 8)))
        if self._chance(15):
            return types_pb2.Key(text=self._draw.choice(_TEXTS))
        data = self._data_of_key(spec)
        if self._chance(60) and (text := _text(data, spec)) is not None:
            return types_pb2.Key(text=text)
        return types_pb2.Key(raw=data)

    def _prefix(self, spec: StoreSpec) -> types_pb2.Key:
        if self._chance(30):
            return self._key(spec)
        if self._chance(20):
            return types_pb2.Key(raw=self._draw.choice((b"\xff", b"\xff\xff", b"a\xff")))
        data = self._data_of_key(spec)
        return types_pb2.Key(raw=data[: self._draw.randrange(len(data) + 1)])

    def _data_of_key(self, spec: StoreSpec) -> bytes:
        """Return the bytes of a key, mostly of one that the store has or had."""
        held = self._draw.choice([each for each in self._scene.held if each.store == spec.name])
        if not held.entries or self._chance(10):
            return self._draw.choice(ODD_KEYS)
        data = self._draw.choice(held.entries)[0]
        size = {"window": 12, "session": 16}.get(spec.kind, 0)
        return data[: len(data) - size] if len(data) >= size else data

    def _shown(self, request: Any) -> None:
        request.raw, request.json_text = self._chance(25), self._chance(15)
        if "reverse" in request.DESCRIPTOR.fields_by_name:
            request.reverse = self._chance(30)
            request.page_size = self._draw.choice((0, 1, 2, 5, 5_000))

    def _go_on(self, request: Any, spec: StoreSpec) -> None:
        """Let a request begin in the middle, perhaps in front of its range or behind it."""
        if self._chance(5):
            request.page_token = self._draw.choice(("damaged", "AAAA", "CgFhEAE="))
        elif self._chance(12):
            token = next_page_token(request, self._data_of_key(spec))
            request.page_token = f"{token[:2]}\n{token[2:]}" if self._chance(10) else token

    def _timed(self, request: Any) -> None:
        for name in ("from_ms", "to_ms"):
            if name in request.DESCRIPTOR.fields_by_name and self._chance(40):
                setattr(request, name, self._draw.choice(_TIMES))

    def _bound(self, request: Any, spec: StoreSpec) -> None:
        bounds: Sequence[tuple[str, Sequence[int]]] = (
            ("max_lag", (0, 0, 10, 10, 100, 100, -1)),
            ("max_staleness_ms", (5 * MINUTE, 5 * MINUTE, 20 * MINUTE, 2 * HOUR, -1)),
            ("max_processor_age_ms", (20 * MINUTE, 2 * HOUR)),
            ("max_input_backlog", (0, 5_000)),
        )
        if self._chance(35):
            request.freshness.active_only = self._chance(50)
            for name, values in bounds:
                if self._chance(40 if name in ("max_lag", "max_staleness_ms") else 10):
                    setattr(request.freshness, name, self._draw.choice(values))
            for _ in range(self._draw.randrange(1, 4) if self._chance(20) else 0):
                held = self._draw.choice([each for each in self._scene.held if each.store == spec.name])
                if self._chance(20):
                    held = self._draw.choice(self._scene.held)
                end = len(held.entries)
                position = -1 if self._chance(2) else self._draw.choice((0, end - 1, end, end + 1, 1_000))
                request.freshness.at_least.positions.add(store=held.store, partition=held.partition, position=position)
        if self._chance(30):
            forwarding = request.forwarding
            forwarding.epoch = self._draw.choice((0, EPOCH - 1, EPOCH, EPOCH + 1))
            forwarding.hops = 2 if self._chance(5) else self._draw.randrange(2)
            forwarding.entry_keys = self._chance(50)
            if self._chance(30):
                forwarding.partition = self._draw.choice((0, 1, 2, 3))


def _text(data: bytes, spec: StoreSpec) -> str | None:
    """Return a key as text; None if it has none."""
    if spec.key_serde == "long":
        return str(struct.unpack(">q", data)[0]) if len(data) == struct.calcsize(">q") else None
    try:
        return data.decode() if spec.key_serde in {"string", "json"} else None
    except UnicodeDecodeError:
        return None
