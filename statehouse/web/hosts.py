"""Which names a server answers to, and which sites may make it change something. Pure.

A page of another site can have a browser call us: by a name of its own that it has let point here (DNS rebinding), or
by a form. The first sends that name as Host, the second its own Origin.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from typing import Final

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_HOST: Final = "*"
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_HOST: Final = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._-]{1,253}))(?::[0-9]{0,5})?")
_OWN_SITE: Final = frozenset({"same-origin", "none"})


def allowed_names(bind_host: str, allowed_hosts: str) -> frozenset[str]:
    """Return the names that a server answers to. `allowed_hosts`: further ones, separated by commas."""
    further = {each.strip().lower().strip("[]") for each in allowed_hosts.split(",")}
    return frozenset(LOOPBACK_NAMES | {bind_host.lower().strip("[]")} | further) - {""}


def is_allowed(host: str, names: Collection[str]) -> bool:
    """Whether a header Host has one of these names. An address is always allowed: no other site can have that."""
    name = name_in(host)
    if name is None:
        return False
    return name in names or ANY_HOST in names or _is_address(name)


def name_in(host: str) -> str | None:
    """Return the name in HOST:PORT, in lower case; None if it is neither a name nor an address."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found["address"] or found["name"]).lower()


def is_own_site(scheme: str, host: str, origin: str | None, fetch_site: str | None) -> bool:
    """Whether a request that changes something comes from a page of this server, or from no page at all.

    `origin`, `fetch_site`: the headers Origin and Sec-Fetch-Site. Programs send neither, browsers always do.
    """
    if fetch_site is not None and fetch_site not in _OWN_SITE:
        return False
    return origin is None or origin.lower() == f"{scheme}://{host}".lower()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
