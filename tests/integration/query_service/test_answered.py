"""What the program answers from stores of each kind is what Python answers, byte by byte."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from google.protobuf.message import Message

from query_service.dataplane.holding import kind_of
from query_service.reads.admission import Admission
from statehouse.control.v1 import serving_pb2
from statehouse.errors import LookupFailure
from statehouse.link.forms import key_form, value_form
from statehouse.serdes import known_serde
from statehouse.v1 import types_pb2
from tests.conformance.calls import Calls
from tests.conformance.reference import REFERENCES
from tests.conformance.scene import EPOCH, Held, Scene
from tests.conformance.scenes import SCENES
from tests.conformance.subject import MAX_MESSAGE_BYTES
from tests.support.go_program import run_go_test

ASKED: Final = ("formats", "odd-keys", "documents", "windows", "sessions", "versions")
ALONE: Final = {
    "Get": 0.5,
    "Scan": 0.4,
    "Count": 0.9,
    "FetchWindows": 0.6,
    "FetchSessions": 0.6,
    "GetAsOf": 0.3,
    "GetHistory": 0.3,
}
"""The least share of the calls that the program answers. The others are refused, or are more than plain reads."""
CALLS = 2_000


@pytest.fixture
def plainly_stamped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have stamps say nothing of time: what they say is another test's, and the limits of pages count their bytes."""
    admit = Admission.admit

    def plain(self: Admission, *asked: Any) -> Any:
        admitted = admit(self, *asked)
        stamp = types_pb2.ReplicaStamp(partition=admitted.stamp.partition, position=admitted.stamp.position, lag=0)
        return replace(admitted, stamp=stamp)

    monkeypatch.setattr(Admission, "admit", plain)


@pytest.mark.usefixtures("plainly_stamped")
async def test_the_program_answers_from_each_kind_of_stores_what_python_does(tmp_path: Path) -> None:
    written, expected = [_number(MAX_MESSAGE_BYTES)], list[tuple[str, Any, Message | None]]()
    documents = {spec.name for name in ASKED for spec in SCENES[name].stores if spec.value_serde == "json"}
    for seed, name in enumerate(ASKED):
        scene = SCENES[name]
        written += _stores(scene)
        asked = list(islice(((method, call) for method, call in Calls(scene, seed) if method in ALONE), CALLS))
        written.append(_number(len(asked)))
        async with REFERENCES["memory"](scene, tmp_path / name) as node:
            for method, call in asked:
                call.ClearField("freshness")
                call.ClearField("forwarding")
                written += (_sized(method.encode()), _sized(call.SerializeToString()))
                try:
                    expected.append((method, call, await node.answer(method, call)))
                except LookupFailure:
                    expected.append((method, call, None))
    said = _ask(tmp_path, b"".join(written))
    alone, of_all = Counter[str](), Counter(method for method, _, _ in expected)
    for (method, call, answer), found in zip(expected, said, strict=True):
        if not found:
            continue
        alone[method] += 1
        assert answer is not None, f"{method} {call} is refused"
        if found != answer.SerializeToString():
            # The fields of a Get have an order of their own; members of documents have none on the wire.
            assert method == "Get" or call.store in documents, f"{method} {call}"
            assert len(found) == answer.ByteSize()
            assert type(answer).FromString(found) == answer, f"{method} {call}"
    shares = {method: alone[method] / count for method, count in of_all.items()}
    assert all(shares[method] >= least for method, least in ALONE.items()), shares


def _stores(scene: Scene) -> list[bytes]:
    """Return what the program is to open, with all records, and the snapshot by which it answers."""
    held = [each for each in scene.held if kind_of(scene.spec(each.store))]
    snapshot = serving_pb2.ServingSnapshot(number=1, epoch=EPOCH, max_batch_entries=100)
    for spec in scene.stores:
        if kind_of(spec):
            snapshot.stores.add(
                name=spec.name,
                key_form=key_form(known_serde(spec.key_serde)),
                value_form=value_form(known_serde(spec.value_serde)),
                partition_count=spec.partition_count,
                is_global=spec.is_global,
                kind=kind_of(spec),
                window_size_ms=spec.window_size_ms,
            )
    stores = {store.name: store for store in snapshot.stores}
    for number, each in zip(range(len(held), 0, -1), held, strict=True):
        head = types_pb2.ReplicaStamp(partition=each.partition).SerializeToString()
        stores[each.store].replicas.add(partition=each.partition, store=number, is_active=True, head=head)
    opened = [part for each in held for part in _store(scene, each)]
    return [_sized(snapshot.SerializeToString()), _number(len(held)), *opened]


def _store(scene: Scene, held: Held) -> list[bytes]:
    spec = scene.spec(held.store)
    parts = [_number(kind_of(spec)), _number(spec.retention_ms), _number(spec.retain_duplicates)]
    parts.append(_number(len(held.entries)))
    for key, value, timestamp_ms in held.entries:
        parts += (_sized(key), _number(timestamp_ms), _number(value is not None))
        parts += () if value is None else (_sized(value),)
    return parts


def _ask(folder: Path, calls: bytes) -> list[bytes]:
    """Return what the program answers; nothing where that is Python's to do."""
    (folder / "calls").write_bytes(calls)
    run_go_test("serve", "TestAnswersForReference", calls=folder / "calls", answers=folder / "answers")
    data, said = (folder / "answers").read_bytes(), []
    while data:
        (size,) = struct.unpack_from(">q", data)
        said.append(data[8 : 8 + size])
        data = data[8 + size :]
    return said


def _number(number: int) -> bytes:
    return struct.pack(">q", number)


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data
