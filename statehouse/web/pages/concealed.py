"""What pages show to readers that may not see the fleet: nothing of where nodes are. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final, TypeVar

from statehouse.client.answers import Host
from statehouse.security.concealed import Addresses

T = TypeVar("T")

_TEXTS: Final = frozenset({"detail", "express_detail", "message"})
"""Fields that have what a connection's failure says of itself."""


def concealed_view(view: T) -> T:
    """Return a view, which is made of data classes and tuples, without the addresses of nodes."""
    addresses = Addresses((each.instance_id, each.host, each.port) for each in _hosts(view))
    concealed: T = _without(view, addresses)
    return concealed


def _hosts(part: Any) -> Iterator[Host]:  # noqa: ANN401 - any part of a view
    if isinstance(part, Host):
        yield part
    elif isinstance(part, tuple):
        for each in part:
            yield from _hosts(each)
    elif dataclasses.is_dataclass(part):
        for field in dataclasses.fields(part):
            yield from _hosts(getattr(part, field.name))


def _without(part: Any, addresses: Addresses) -> Any:  # noqa: ANN401 - as above
    if isinstance(part, Host):
        return Host(part.instance_id, "", 0)
    if isinstance(part, tuple):
        return tuple(_without(each, addresses) for each in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    changed = {
        name: addresses.taken_out_of(value) if name in _TEXTS and isinstance(value, str) else _without(value, addresses)
        for name, value in values.items()
    }
    return dataclasses.replace(part, **changed)
