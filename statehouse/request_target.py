"""What an HTTP request asks for, whichever way its target is written. Pure."""

from __future__ import annotations

from typing import Final

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
