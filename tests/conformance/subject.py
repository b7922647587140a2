"""What takes part in the suite: a node that holds a scene, asked as a caller asks it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Protocol

from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from statehouse.v1 import query_service_pb2
from tests.conformance.scene import Scene

_METHODS: Final = query_service_pb2.DESCRIPTOR.services_by_name["QueryService"].methods_by_name
MAX_BATCH_ENTRIES: Final = 100
MAX_MESSAGE_BYTES: Final = 16 * 1024
"""So small that pages are cut, and answers too large."""


class Node(Protocol):
    """A node that holds a scene."""

    async def answer(self, method: str, request: Any) -> Message:
        """Answer a call of the query service.

        Raises:
            LookupFailure: the node refuses.

        """


Subject = Callable[[Scene, Path], AbstractAsyncContextManager[Node]]
"""Opens a node; the directory is for its files."""


def request_type(method: str) -> type[Message]:
    """Return what a method takes."""
    return GetMessageClass(_METHODS[method].input_type)
