"""Messages for every RPC that a server has: random bytes, valid ones filled at random, and those with bytes changed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

_DEEPEST: Final = 6
_NUMBERS: Final = (0, 1, 2, 3, 100, 1_001, 2**31 - 1, 2**32 - 1, 2**63 - 1, -1, -(2**31), -(2**63))
_REALS: Final = (0.0, -1.5, 1e308, float("inf"), float("nan"))
_BOUNDS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass(frozen=True)
class Method:
    """An RPC, as its server describes it."""

    path: str
    input: Descriptor
    is_streaming: bool


def methods_of(channel: grpc.Channel, package: str) -> list[Method]:
    """Return the RPCs of the services in a package that a server lists by reflection."""
    database = ProtoReflectionDescriptorDatabase(channel)
    pool = DescriptorPool(database)
    services = [name for name in database.get_services() if name.startswith(f"{package}.")]
    found: list[MethodDescriptor] = [each for name in services for each in pool.FindServiceByName(name).methods]
    return [
        Method(f"/{each.containing_service.full_name}/{each.name}", each.input_type, each.server_streaming)
        for each in found
    ]


class Fuzzer:
    """Makes messages from one seed. `texts` and `tokens` are values that mean something to the servers."""

    def __init__(self, seed: int, texts: Sequence[str], tokens: Sequence[str], *, longest_key: int) -> None:
        self._choice = random.Random(seed)
        self._texts = (*texts, "", "nowhere", "\0", "ключ", "x" * 300)
        self._tokens = (*tokens, "", "AAAA", "not base64!", "ff" * 40)
        self._longest_key = longest_key

    def messages(self, method: Method, count: int) -> Iterator[bytes]:
        """Return serialized requests of each sort in turn."""
        sorts: list[Callable[[Method], bytes]] = [self._noise, self._valid, self._mutated, self._valid]
        for number in range(count):
            yield sorts[number % len(sorts)](method)

    def _noise(self, _: Method) -> bytes:
        return self._choice.randbytes(self._choice.choice((0, 1, 2, 10, 100, 1_000)))

    def _valid(self, method: Method) -> bytes:
        return self._filled(method.input, 0).SerializeToString()

    def _mutated(self, method: Method) -> bytes:
        data = bytearray(self._valid(method))
        for _ in range(self._choice.randint(1, 4)):
            at = self._choice.randrange(len(data) + 1)
            match self._choice.randrange(4):
                case 0:
                    data[at:at] = self._choice.randbytes(self._choice.randint(1, 8))
                case 1:
                    del data[at : at + self._choice.randint(1, 8)]
                case 2:
                    del data[at:]
                case _ if at < len(data):
                    data[at] ^= 1 << self._choice.randrange(8)
        return bytes(data)

    def _filled(self, descriptor: Descriptor, depth: int) -> Message:
        message = GetMessageClass(descriptor)()
        oneofs = {oneof.name: self._choice.choice(oneof.fields).name for oneof in descriptor.oneofs}
        for field in descriptor.fields:
            chosen = field.containing_oneof is None or oneofs[field.containing_oneof.name] == field.name
            # The fields that say where a request is to go matter most; forwarding would end most requests immediately.
            if not chosen or self._choice.random() < self._share_left_out(field):
                continue
            self._fill(message, field, depth)
        return message

    @staticmethod
    def _share_left_out(field: FieldDescriptor) -> float:
        return {"store": 0.05, "key": 0.2, "lookup": 0.05, "requests": 0.05, "forwarding": 0.9}.get(field.name, 0.5)

    def _fill(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None and depth >= _DEEPEST:
            return
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            return  # the maps of a request's Struct: arguments that no built-in store takes
        if field.is_repeated:
            for _ in range(self._choice.randint(0, 3)):
                if field.message_type is None:
                    getattr(message, field.name).append(self._scalar(field))
                else:
                    getattr(message, field.name).add().CopyFrom(self._filled(field.message_type, depth + 1))
        elif field.message_type is not None:
            getattr(message, field.name).CopyFrom(self._filled(field.message_type, depth + 1))
        else:
            setattr(message, field.name, self._scalar(field))

    def _scalar(self, field: FieldDescriptor) -> Any:
        kind = field.cpp_type
        if kind == FieldDescriptor.CPPTYPE_STRING:
            return self._string(field)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self._choice.random() < 0.5
        if kind in _BOUNDS:
            low, high = _BOUNDS[kind]
            return self._choice.choice([number for number in _NUMBERS if low <= number <= high])
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            return self._choice.choice([0, 1, 77])
        return self._choice.choice(_REALS)

    def _string(self, field: FieldDescriptor) -> str | bytes:
        if field.type == FieldDescriptor.TYPE_BYTES:
            size = self._choice.choice((0, 1, 3, 20, self._longest_key))
            return self._choice.randbytes(size) if size <= 20 else b"k" * size
        if field.name == "page_token":
            return self._choice.choice(self._tokens)
        if field.name == "text" and self._choice.random() < 0.05:
            return "k" * self._longest_key
        return self._choice.choice(self._texts)
