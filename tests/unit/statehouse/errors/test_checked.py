"""What other processes write is checked: the least and the most that is taken, and what lies beyond."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statehouse.errors import ContractError
from statehouse.errors.checked import (
    COUNT_MAX,
    checked_count,
    checked_host,
    checked_id,
    checked_list,
    checked_port,
    checked_record,
    checked_size,
    checked_text,
    checked_time_ms,
    checked_topic,
)


@pytest.mark.parametrize(
    "host",
    [
        *("a", "localhost", "node-1.example.org.", "my_container", "10.0.0.1", "::1", "fe80::1%eth0.1", "unix.example"),
        *("x" * 63, ".".join(["x" * 61] * 4), "2001:db8:1111:2222:3333:4444:5555:6666%" + "z" * 32),
    ],
)
def test_names_and_addresses_are_hosts(host: str) -> None:
    assert checked_host("host", host) == host


@pytest.mark.parametrize(
    "host",
    [
        *("", "x" * 64, "a b", "a\n", "-a", "a/b", "[::1]", "a:80", "é", "\0", "::1" * 200, "a..b", ".a", "a-.b"),
        *("::1%", "::1%" + "x" * 33, "::1%" + "x" * 250, "::1%é", "::1%a/b", "::1%a%b", "::1%\n", "10.0.0.1%eth0"),
        *(".".join(["x" * 61] * 4) + "x", "%", "a%b", "%eth0", "unix", "UNIX", "dns", "ipv6", "xds", "unix-abstract"),
    ],
)
def test_nothing_else_is_a_host(host: str) -> None:
    with pytest.raises(ContractError, match="host"):
        checked_host("host", host)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checked_count, (0, COUNT_MAX), (-1, COUNT_MAX + 1, 2**63 - 1, 2**64 - 1)),
        (checked_port, (1, 65_535), (0, 65_536, -1)),
        (checked_time_ms, (0, 253_402_300_799_999), (-1, 253_402_300_800_000, 2**63 - 1)),
        (checked_text, ("", "x", "é" * 127, "x" * 255), ("é" * 128, "x" * 256, "a\nb", "\0", "\u202e")),
        (checked_id, ("x", "x" * 255), ("", "x" * 256, "\t")),
        (checked_size, ("", "\n", "x" * 65_536, "é" * 32_768), ("x" * 65_537, "é" * 32_769)),
        (lambda _, value: checked_record(value), (b"", bytes(8 * 2**20)), (bytes(8 * 2**20 + 1),)),
        (checked_list, ((), range(100_000)), (range(100_001),)),
        (checked_topic, ("a", ".a", "x" * 249), ("", ".", "..", "a/b", "x" * 250, "é")),
    ],
)
def test_the_least_and_the_most_are_taken_and_nothing_beyond(
    check: Callable[[str, object], object], good: tuple[object, ...], bad: tuple[object, ...]
) -> None:
    for value in good:
        assert check("it", value) == value
    for value in bad:
        with pytest.raises(ContractError, match="it "):
            check("it", value)
