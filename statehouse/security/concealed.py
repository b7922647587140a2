"""Answers for callers that may not see the fleet: without the addresses of nodes. Pure.

Where there are rules, a caller without the right `fleet` learns which node has answered, by its name, and not where it
is. The name (`instance_id`) stays: logs and people speak of nodes by it, and nobody can connect to a node by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2

from statehouse.errors import REASONS, LookupFailure
from statehouse.v1 import errors_pb2, fleet_service_pb2, query_service_pb2, types_pb2

ELSEWHERE: Final = "(an address)"
"""What stands in texts in place of an address."""

_OURS: Final = "statehouse.v1."
_HOST: Final = types_pb2.Host.DESCRIPTOR.full_name
# Fields that have what a connection's failure says of itself, by their messages.
_TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    errors_pb2.LookupError.DESCRIPTOR.full_name: ("message", "metadata"),
    errors_pb2.Candidate.DESCRIPTOR.full_name: ("detail",),
    fleet_service_pb2.LookupAttempt.DESCRIPTOR.full_name: ("detail",),
    fleet_service_pb2.ExplainGetResponse.DESCRIPTOR.full_name: ("express_detail",),
}
# As gRPC in C, gRPC in Go and sockets write addresses. Square brackets may be percent-encoded.
_ADDRESS: Final = re.compile(
    r"(?:(?:ipv[46]|dns|unix):\S+)"
    r"|(?:\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b)"
    r"|(?:(?:\[|%5B)[0-9A-Fa-f:.]*:[0-9A-Fa-f:.%\w]*(?:\]|%5D)(?::\d{1,5})?)"
)
_NAMED: Final = re.compile(r"(?<=lookup )\S+|\b[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?:\d{1,5}\b")
_OF_A_CONNECTION: Final = re.compile(r"connect|dial|DNS|resol|lookup \S+ on|no such host", re.IGNORECASE)
# What these say is about the request: it repeats what the caller has sent.
_OF_A_REQUEST: Final = frozenset({code_pb2.INVALID_ARGUMENT, code_pb2.NOT_FOUND, code_pb2.OUT_OF_RANGE})

_ANSWERS: Final[Mapping[str, type[Message]]] = {
    f"/{service.full_name}/{method.name}": GetMessageClass(method.output_type)
    for file in (query_service_pb2, fleet_service_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}

Answer = TypeVar("Answer")
T = TypeVar("T", bound=Message)


class Addresses:
    """What finds the addresses of nodes in texts: those of `hosts` (name, host, port), and whatever looks like one.

    A host that is also a node's name stays, without its port.
    """

    def __init__(self, hosts: Iterable[tuple[str, str, int]]) -> None:
        self._hosts = tuple(hosts)

    @cached_property
    def _known(self) -> re.Pattern[str]:
        # Made for the first text: most answers have none.
        names = {name for name, _, _ in self._hosts}
        alone = {host for _, host, _ in self._hosts if host} - names
        found = alone | {f"{host}:{port}" for _, host, port in self._hosts if host}
        longest_first = sorted(map(re.escape, found), key=lambda text: (-len(text), text))
        # Without any it finds nothing.
        return re.compile(rf"(?<![\w.-])(?:{'|'.join(longest_first) or '(?!)'})(?![\w-])")

    def taken_out_of(self, text: str) -> str:
        """Return a text without addresses."""
        text = self._known.sub(ELSEWHERE, text)
        is_of_a_connection = _OF_A_CONNECTION.search(text) is not None
        text = _ADDRESS.sub(ELSEWHERE, text)
        return _NAMED.sub(ELSEWHERE, text) if is_of_a_connection else text


def concealed_answer(method: str, answer: Answer) -> Answer:
    """Return an answer of a method, by its path, without addresses; serialized or not, as it is given."""
    kind = _ANSWERS.get(method)
    if kind is None:
        return answer
    given: Any = answer
    if isinstance(given, bytes):
        try:
            message = kind.FromString(given)
        except DecodeError:  # no answer of ours
            return answer
        conceal(message)
        return message.SerializeToString()  # type: ignore[return-value] # bytes, as they were given
    return concealed_message(given)  # type: ignore[no-any-return]


def concealed_message(message: T) -> T:
    """Return a copy of a message without addresses: what is given may be kept for others."""
    copy = type(message)()
    copy.CopyFrom(message)
    conceal(copy)
    return copy


def concealed_failure(failure: LookupFailure) -> LookupFailure:
    """Return a failure without addresses."""
    if REASONS[failure.reason].code in _OF_A_REQUEST and not failure.candidates and failure.route is None:
        return failure
    message = failure.to_proto()
    conceal(message)
    return LookupFailure.from_proto(message)


def conceal(message: Message) -> None:
    """Take the addresses of nodes out of a message, and of all that is in it."""
    parts = list(_parts(message))
    hosts = [part for part in parts if part.DESCRIPTOR.full_name == _HOST]
    addresses = Addresses((each.instance_id, each.host, each.port) for each in hosts)
    for part in parts:
        _scrub(part, addresses)
    for host in hosts:
        host.ClearField("host")
        host.ClearField("port")


def _scrub(part: Any, addresses: Addresses) -> None:  # noqa: ANN401 - any message
    for field in _TEXTS.get(part.DESCRIPTOR.full_name, ()):
        value = getattr(part, field)
        if isinstance(value, str):
            setattr(part, field, addresses.taken_out_of(value))
        else:
            for key in value:
                value[key] = addresses.taken_out_of(value[key])


def _parts(message: Message) -> Iterator[Any]:
    """Yield a message and all of ours that are in it, hosts and texts among them."""
    yield message
    for field in _leading_on(message.DESCRIPTOR):
        found = getattr(message, field.name)
        if field.is_repeated:
            for each in found:
                yield from _parts(each)
        elif message.HasField(field.name):
            yield from _parts(found)


@cache
def _leading_on(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    """Return the fields of a message that may have a host or a text in them."""
    return tuple(field for field in descriptor.fields if _is_ours(field) and _leads_on(field.message_type))


@cache
def _leads_on(descriptor: Descriptor) -> bool:
    if descriptor.full_name == _HOST or descriptor.full_name in _TEXTS:
        return True
    return any(_leads_on(field.message_type) for field in descriptor.fields if _is_ours(field))


def _is_ours(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.full_name.startswith(_OURS) and not kind.GetOptions().map_entry
