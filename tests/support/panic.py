"""What native code raises when it breaks."""

from __future__ import annotations


class Panic(BaseException):
    """As the bindings of Rust have it: no `Exception`."""
