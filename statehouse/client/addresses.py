"""Routers' addresses as people write them, and as gRPC takes them. Pure."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from statehouse.errors import ConfigurationError, shown

DEFAULT_PORT: Final = 7100
"""What `statehouse router` listens on if nothing else is said."""
_HOST_AND_PORT: Final = re.compile(r"(?P<host>[^\s/:\[\]]+|\[[^\s/\[\]]+\])(:(?P<port>[0-9]{1,5}))?")
_URL: Final = re.compile(r"[^/]*://([^/?#@]*@)?(?P<host>[A-Za-z0-9._-]{1,247}|\[[0-9A-Fa-f:.]{1,45}\])")
_ANY_HOST: Final = "router-1"
_PORT_MAX: Final = 65_535
# gRPC's own ways to name a server are for those who know them.
_GRPC_SCHEMES: Final = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|passthrough):[^0-9].*", re.DOTALL)


def addresses(target: str) -> list[str]:
    """Return the addresses that a text names, separated by commas, each with a port: 7100 if it has none.

    Raises:
        ConfigurationError: it names none, or one that is a URL or no address.

    """
    targets = [each for part in target.split(",") if (each := part.strip())]
    if not targets:
        raise ConfigurationError(f"{target!r} names no router: give host:port, or several separated by commas")
    return [_with_port(each) for each in targets]


def _with_port(address: str) -> str:
    if _GRPC_SCHEMES.fullmatch(address):
        return address
    if "://" in address:
        raise ConfigurationError(_no_url(address))
    if _is_ipv6(address):
        return f"[{address}]:{DEFAULT_PORT}"
    parts = _HOST_AND_PORT.fullmatch(address)
    if parts is None or (parts["port"] is not None and not 1 <= int(parts["port"]) <= _PORT_MAX):
        raise ConfigurationError(
            f"{shown(address)} is no router's address: give host:port, as 127.0.0.1:{DEFAULT_PORT}"
        )
    return address if parts["port"] else f"{address}:{DEFAULT_PORT}"


def _is_ipv6(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).version == 6
    except ValueError:
        return False


def _no_url(url: str) -> str:
    """Say what to give in place of a URL; its port, if it has one, is HTTP's."""
    parts = _URL.match(url)
    host = parts["host"] if parts else _ANY_HOST
    hint = ", and tls=ClientTls(...) for TLS" if url.lower().startswith("https:") else ""
    return f"{shown(url)} is a URL, and clients call routers by gRPC: give host:port, as '{host}:{DEFAULT_PORT}'{hint}"
