"""Routes whose path parameters may have any text, a slash written %2F too."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.routing import Match, Route
from starlette.types import Scope

from statehouse.runtime.request_target import check_escapes

UNREADABLE: Final = "unreadable_parameter"
"""In the state of a request: the name of a path parameter that is no percent-encoded UTF-8."""


class RawRoute(Route):
    """A route that is matched before the path is decoded: each parameter is decoded on its own.

    `head`: whether HEAD is answered, too.
    """

    def __init__(self, path: str, endpoint: Any, *, methods: list[str], name: str, head: bool = True) -> None:  # noqa: ANN401 - starlette's own
        super().__init__(path, endpoint, methods=methods, name=name)
        if self.methods is not None and not head:
            self.methods.discard("HEAD")

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match the path as it was sent."""
        if scope["type"] != "http":
            return Match.NONE, {}
        raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
        as_sent = raw_path.partition(b"?")[0].decode("ascii", "replace")
        match, found = super().matches({**scope, "path": as_sent})
        if match is Match.NONE:
            return match, found
        decoded: dict[str, str] = {}
        for name, text in found.get("path_params", {}).items():
            try:
                check_escapes(text)
                decoded[name] = unquote_to_bytes(text).decode()
            except ValueError:
                found["state"] = {**scope.get("state", {}), UNREADABLE: name}
        return match, {**found, "path_params": decoded}
