"""Answers with the address of a node wherever one may stand."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from statehouse.v1 import types_pb2

HOST = types_pb2.Host(instance_id="node-a", host="a.nodes.internal", port=7_101)
SECRETS = ("a.nodes.internal", "7101", "10.1.2.3")
TEXT = "no connection to a.nodes.internal:7101: ipv4:10.1.2.3:7101: connection refused"


def filled(descriptor: Descriptor, depth: int = 0) -> Any:
    """Return a message in which each field is set, with addresses wherever one may stand."""
    message: Any = GetMessageClass(descriptor)()
    if descriptor.full_name == HOST.DESCRIPTOR.full_name:
        message.CopyFrom(HOST)
        return message
    for field in descriptor.fields:
        kind = field.message_type
        if kind is None:
            if field.name in {"detail", "message", "express_detail"}:
                setattr(message, field.name, TEXT)
        elif kind.GetOptions().map_entry:
            if field.name == "metadata":
                message.metadata["why"] = TEXT
        elif kind.full_name.startswith("statehouse.v1.") and depth < 8:
            part = filled(kind, depth + 1)
            if field.is_repeated:
                getattr(message, field.name).append(part)
            else:
                getattr(message, field.name).CopyFrom(part)
    return message
