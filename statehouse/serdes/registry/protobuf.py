"""Protobuf values, each by the schema that it was written with.

They are shown as protobuf's JSON, with two differences: fields have the schema's names, and integers of 64 bits are
numbers, as those of Avro are.
"""

from __future__ import annotations

import base64
import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from statehouse.serdes import DocumentSerde, JsonValue
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.client import RegisteredText, RegistryClient
from statehouse.serdes.registry.schemas import Schemas
from statehouse.serdes.registry.wire_format import split_indexes, unframed

# Imported by schemas without being registered: the registry's clients bring them.
_BUILT_IN = ("google/protobuf/", "google/type/", "confluent/")


class ProtobufSerde(DocumentSerde):
    """Protobuf in the registry's wire format."""

    def __init__(self, options: SerdeOptions) -> None:
        client = RegistryClient(options, "PROTOBUF", form="serialized")
        self._schemas = Schemas(lambda schema_id: MessageTypes(client.schema(schema_id)))

    def document(self, data: bytes) -> JsonValue:
        """Decode."""
        schema_id, rest = unframed(data)
        indexes, payload = split_indexes(rest)
        types = self._schemas.decoder(schema_id)
        try:
            message = types.message(indexes)
            message.ParseFromString(payload)
            return _shown(message, types.pool)
        except (DecodeError, ValueError, TypeError, json_format.Error) as error:
            raise ValueError(f"it is not what schema {schema_id} says: {error}") from error


class MessageTypes:
    """The messages of a schema."""

    def __init__(self, schema: RegisteredText) -> None:
        """Compile a schema.

        Raises:
            ValueError: the schema can't be read.

        """
        self.pool = DescriptorPool()
        self._found: dict[tuple[int, ...], type[Message]] = {}
        try:
            for name, text in schema.references:
                if not self._has(name):  # as a built-in one that another file has imported
                    self._add(name, text)
            self._file = self._add("statehouse-value.proto", schema.text)
        except (TypeError, KeyError, DecodeError) as error:
            raise ValueError(f"the schema can't be compiled: {error}") from error

    def message(self, indexes: Sequence[int]) -> Message:
        """Return an empty message of the type at a path.

        Raises:
            ValueError: there is none.

        """
        path = tuple(indexes)
        if path not in self._found:
            self._found[path] = GetMessageClass(self._type(path))
        return self._found[path]()

    def _type(self, path: Sequence[int]) -> Descriptor:
        """Return the type at a path. A descriptor has its types by name, and only its file's proto in order."""
        proto: Any = descriptor_pb2.FileDescriptorProto()
        self._file.CopyToProto(proto)
        names, nested = [proto.package] if proto.package else [], proto.message_type
        for index in path:
            if index >= len(nested):
                raise ValueError(f"the schema has no message at {list(path)}")
            names.append(nested[index].name)
            nested = nested[index].nested_type
        return self.pool.FindMessageTypeByName(".".join(names))

    def _has(self, name: str) -> bool:
        try:
            self.pool.FindFileByName(name)
        except KeyError:
            return False
        return True

    def _add(self, name: str, text: str) -> Any:  # noqa: ANN401 - a FileDescriptor, whose stub lacks CopyToProto's type
        file = descriptor_pb2.FileDescriptorProto()
        try:
            file.ParseFromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError) as error:
            raise ValueError(
                "the registry gave the schema as text, though it was asked for its compiled form (format=serialized), "
                "which this registry may not have: read it raw, or register the schema's descriptor"
            ) from error
        file.name = name
        for needed in file.dependency:
            if needed.startswith(_BUILT_IN):
                self._add_built_in(needed)
        self.pool.Add(file)
        return self.pool.FindFileByName(name)

    def _add_built_in(self, name: str) -> None:
        """Copy a file that every registry's client has from those that are compiled into this process."""
        if self._has(name):
            return
        _import_built_ins()
        proto = descriptor_pb2.FileDescriptorProto()
        Default().FindFileByName(name).CopyToProto(proto)
        for needed in proto.dependency:
            self._add_built_in(needed)
        self.pool.Add(proto)


def _shown(message: Message, pool: DescriptorPool) -> JsonValue:
    """Return a message as JSON. A part that has no form there is shown as what was written, and the rest as usual."""
    try:
        return _with_numbers(message.DESCRIPTOR, _printed(message, pool))
    except (ValueError, TypeError, json_format.Error):
        unprintable = [(path, _as_written(part)) for path, part in _unprintable(message, (), pool)]
    if unprintable and not unprintable[0][0]:
        return unprintable[0][1]  # the message itself
    shown: Any = _with_numbers(message.DESCRIPTOR, _printed(message, pool))
    for (*way, last), written in unprintable:
        holder = shown
        for step in way:
            holder = holder[step]
        holder[last] = written
    return cast("JsonValue", shown)


def _printed(message: Message, pool: DescriptorPool) -> Any:  # noqa: ANN401 - as json_format makes it
    return json_format.MessageToDict(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        descriptor_pool=pool,
    )


def _unprintable(
    message: Message, path: tuple[str | int, ...], pool: DescriptorPool
) -> Iterator[tuple[tuple[str | int, ...], Message]]:
    """Yield copies of the well-known messages within that JSON has no form for, with their paths; empty them."""
    if message.DESCRIPTOR.full_name.startswith("google.protobuf."):
        try:
            _printed(message, pool)
        except (ValueError, TypeError, json_format.Error):
            part = type(message)()
            part.CopyFrom(message)
            message.Clear()
            yield path, part
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        items: Iterable[tuple[tuple[str | int, ...], Any]]
        if field.message_type.GetOptions().map_entry:
            if field.message_type.fields_by_name["value"].message_type is None:
                continue
            items = (((field.name, _map_key(key)), value[key]) for key in value)
        elif field.is_repeated:
            items = (((field.name, number), each) for number, each in enumerate(value))
        else:
            items = [((field.name,), value)]
        for steps, item in items:
            yield from _unprintable(item, path + steps, pool)


def _map_key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _as_written(part: Any) -> JsonValue:  # noqa: ANN401 - a well-known message
    match part.DESCRIPTOR.name:
        case "Timestamp" | "Duration" if part.nanos == 0:
            return int(part.seconds)
        case "Timestamp" | "Duration":
            return f"{part.seconds} s and {part.nanos} ns"
        case "Any":
            return {"@type": part.type_url, "value": base64.b64encode(part.value).decode()}
        case _:
            return base64.b64encode(part.SerializeToString()).decode()


def _with_numbers(descriptor: Any, shown: Any) -> JsonValue:  # noqa: ANN401 - a Descriptor, and as json_format makes it
    """Turn the 64-bit integers of a message's JSON from text into numbers, in place."""
    if not isinstance(shown, dict) or descriptor.full_name.startswith("google.protobuf."):
        return cast("JsonValue", shown)
    for name, value in shown.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            continue  # an extension
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            item = field.message_type.fields_by_name["value"]
            shown[name] = {key: _number(item, each) for key, each in value.items()}
        else:
            shown[name] = [_number(field, each) for each in value] if field.is_repeated else _number(field, value)
    return cast("JsonValue", shown)


def _number(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401 - as json_format makes it
    if field.cpp_type in {FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64}:
        return int(value)
    return value if field.message_type is None else _with_numbers(field.message_type, value)


def _import_built_ins() -> None:
    """Put the files that schemas may import without registering them into the default pool."""
    # Not imported at the top: confluent's client takes a second, and few schemas import any of these.
    importlib.import_module("confluent_kafka.schema_registry.common.protobuf")
