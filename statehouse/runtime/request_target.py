"""What an HTTP request asks for, whichever way its target is written. Pure."""

from __future__ import annotations

import re
from typing import Final

_BROKEN_ESCAPE: Final = re.compile("%(?![0-9a-fA-F]{2})")
_SCHEMES: Final = ("http://", "https://")


def in_origin_form(target: str) -> tuple[str, str]:
    """Return the authority that a request's target names, and the rest, which begins with a slash.

    Proxies, and some probes, send the whole URL (RFC 9112, 3.2.2): its authority then counts in place of the header
    Host. For other targets it is empty, and the rest is the target as it is.
    """
    scheme = next((each for each in _SCHEMES if target[: len(each)].lower() == each), None)
    if scheme is None:
        return "", target
    authority, slash, path = target[len(scheme) :].partition("/")
    authority, mark, query = authority.partition("?")
    return authority, f"/{mark}{query}{slash}{path}" if mark else f"/{path}"


def check_escapes(text: str) -> None:
    """Check that each percent sign begins an escape. Python's decoders leave others as they are: %zz, %u0031.

    Raises:
        ValueError: one doesn't.

    """
    if _BROKEN_ESCAPE.search(text):
        raise ValueError("a percent sign without two hex digits behind it")
