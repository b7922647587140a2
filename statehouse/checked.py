"""Checks of what other processes wrote: each returns the value if it can be true, or says why it can't. Pure.

A record of a control topic is input from outside. Who may write there is trusted with what the fields mean; that a
value is a name, or a number that the rest of the code can count on from, is checked here.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from statehouse.errors import ContractError

COUNT_MAX: Final = 2**53
"""Epochs, offsets, heartbeats: none ever gets so far, and adding to one fits 64 bits."""
PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic; Kafka itself advises against a tenth of it."""
SUB_TOPOLOGIES_MAX: Final = 1_000_000
"""Numbers of sub-topologies: they are never used again."""
CAPACITY_MAX: Final = 1_000
_TIME_MAX_MS: Final = 253_402_300_799_999
"""The end of the year 9999; epoch milliseconds."""
_PORT_MAX: Final = 65_535
_TEXT_MAX: Final = 255
_SIZE_MAX: Final = 65_536
_HOST: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def checked_text(what: str, text: str) -> str:
    """Return a text that people read, or nothing: printable, at most 255 bytes of UTF-8.

    Raises:
        ContractError: it is neither.

    """
    if len(text) > _TEXT_MAX or len(text.encode()) > _TEXT_MAX:
        raise ContractError(f"{what} is longer than {_TEXT_MAX} bytes")
    if not text.isprintable():
        raise ContractError(f"{what} {text!r} has characters that can't be shown")
    return text


def checked_size(what: str, text: str) -> str:
    """Return a text of any characters, of at most 65,536.

    Raises:
        ContractError: it is longer.

    """
    if len(text) > _SIZE_MAX:
        raise ContractError(f"{what} is longer than {_SIZE_MAX} characters")
    return text


def checked_id(what: str, text: str) -> str:
    """Return a text that names something, such as an instance id; raises as `checked_text` does, and if it is empty."""
    if not text:
        raise ContractError(f"{what} is empty")
    return checked_text(what, text)


def checked_host(what: str, host: str) -> str:
    """Return a host's name or address.

    Raises:
        ContractError: it is neither.

    """
    if len(host) <= _TEXT_MAX:
        if _HOST.fullmatch(host) is not None:
            return host
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass
        else:
            return host
    raise ContractError(f"{what} {host[:_TEXT_MAX]!r} is no host name or address of at most {_TEXT_MAX} bytes")


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
