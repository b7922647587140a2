"""Checks of what other processes wrote: each returns the value if it can be true, or says why it can't. Pure.

A record of a control topic is input from outside. What its fields mean is for its author to say; that a value is a
name, or a number that the rest of the code can count on from, is checked here. Texts are bounded in bytes of UTF-8:
that is what paths, addresses, labels and the link between a process and its proxy have room for.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from typing import Final, TypeVar

from statehouse.errors import ContractError

E = TypeVar("E")

COUNT_MAX: Final = 2**53
"""Epochs, offsets, heartbeats: none ever gets so far, and adding to one fits 64 bits."""
PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic; Kafka itself advises against a tenth of it."""
PARTITIONS_OF_ALL_MAX: Final = 200_000
"""Partitions of all stores of an application, and of all its sub-topologies: each costs every process some memory."""
STORES_MAX: Final = 10_000
HOLDERS_MAX: Final = 1_000
"""Standbys of a task, and warm-ups."""
LIST_MAX: Final = 100_000
"""Elements of a list in a record: a fleet has one for each partition."""
SUB_TOPOLOGIES_MAX: Final = 1_000_000
"""Numbers of sub-topologies: they are never used again."""
CAPACITY_MAX: Final = 1_000
_TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999; epoch milliseconds."""
_PORT_MAX: Final = 65_535
_TEXT_MAX: Final = 255
_SIZE_MAX: Final = 65_536
# Before the first parse: what is compressed in the topic may be very much larger than there.
_RECORD_MAX: Final = 8 * 2**20
# What the brackets, the colon and the port leave of the 255 bytes that an address may have on the link.
_HOST_MAX: Final = 247
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*\.?")
# Names of network interfaces are shorter, and Python takes anything for one.
_ZONE: Final = re.compile(r"[A-Za-z0-9_.~-]{1,32}")
# With a port these are no hosts to gRPC, but other ways to a server: `unix:7001` is a file.
_SCHEMES: Final = frozenset(
    {"dns", "google-c2p", "ipv4", "ipv6", "passthrough", "unix", "unix-abstract", "vsock", "xds"}
)
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def checked_text(what: str, text: str) -> str:
    """Return a text that people read, or nothing: printable, at most 255 bytes of UTF-8.

    Raises:
        ContractError: it is neither.

    """
    if not _has_at_most(_TEXT_MAX, text):
        raise ContractError(f"{what} is longer than {_TEXT_MAX} bytes")
    if not text.isprintable():
        raise ContractError(f"{what} {text!r} has characters that can't be shown")
    return text


def _has_at_most(most: int, text: str) -> bool:
    """Whether a text has at most so many bytes. Half a surrogate pair, which Python's texts may have, has none."""
    return len(text) <= most and len(text.encode(errors="surrogatepass")) <= most


def checked_size(what: str, text: str) -> str:
    """Return a text of any characters, of at most 65,536 bytes of UTF-8.

    Raises:
        ContractError: it is longer.

    """
    if not _has_at_most(_SIZE_MAX, text):
        raise ContractError(f"{what} is longer than {_SIZE_MAX} bytes")
    return text


def checked_list(what: str, elements: Collection[E], most: int = LIST_MAX) -> Collection[E]:
    """Return a list, or a map, that isn't too long.

    Raises:
        ContractError: it has more elements than `most`.

    """
    if len(elements) > most:
        raise ContractError(f"it has {len(elements)} {what}, and {most} are the most")
    return elements


def checked_record(value: bytes, most: int = _RECORD_MAX) -> bytes:
    """Return the value of a record, to be parsed, of at most `most` bytes, or 8 MiB; raises as `checked_size` does."""
    if len(value) > most:
        raise ContractError(f"it has {len(value)} bytes, and {most} are the most")
    return value


def checked_id(what: str, text: str) -> str:
    """Return a text that names something, such as an instance id; raises as `checked_text` does, and if it is empty."""
    if not text:
        raise ContractError(f"{what} is empty")
    return checked_text(what, text)


def checked_host(what: str, host: str) -> str:
    """Return a host's name, or an IPv4 or IPv6 address, the latter with a zone if it has one.

    Raises:
        ContractError: it is none of them, has more than 247 bytes, or means something else to gRPC.

    """
    if host.lower() in _SCHEMES:
        raise ContractError(f"{what} {host!r} before a port means something else to gRPC: give another name of it")
    if len(host) <= _HOST_MAX and (_HOST.fullmatch(host) is not None or _is_address(host)):
        return host
    raise ContractError(f"{what} {host[:_TEXT_MAX]!r} is no host name or address of at most {_HOST_MAX} bytes")


def _is_address(host: str) -> bool:
    address, has_zone, zone = host.partition("%")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return not has_zone or (":" in address and _ZONE.fullmatch(zone) is not None)


def checked_topic(what: str, topic: str) -> str:
    """Return a topic's name by Kafka's rule.

    Raises:
        ContractError: Kafka has no such topics.

    """
    if _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise ContractError(f"{what} {topic[:_TEXT_MAX]!r} can't be a topic's name")
    return topic


def checked_count(what: str, number: int, most: int = COUNT_MAX, least: int = 0) -> int:
    """Return a number within its range.

    Raises:
        ContractError: it is outside.

    """
    if not least <= number <= most:
        raise ContractError(f"{what} must be from {least} to {most}, and is {number}")
    return number


def checked_port(what: str, port: int) -> int:
    """Return a TCP port; raises as `checked_count` does."""
    return checked_count(what, port, _PORT_MAX, 1)


def checked_time_ms(what: str, time_ms: int) -> int:
    """Return a time, epoch milliseconds, before the year 10,000; raises as `checked_count` does."""
    return checked_count(what, time_ms, _TIME_MAX_MS)
