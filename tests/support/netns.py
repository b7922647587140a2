"""Network namespaces: a process in one has its own network, which a test can cut, also in one direction only.

    host ── bridge 10.x.y.1 ──┬── veth ── namespace 10.x.y.2
                              └── veth ── namespace 10.x.y.3

Every name contains the id of the process that made it. That process removes everything; if it was killed, the next run
does. Needs root and Debian's packages iproute2 and nftables; a test without them fails and says so.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pytest

# <prefix><process>.<network>[-<namespace>]: an interface's name has 15 characters at most, a process id up to 7.
_PREFIX: Final = "sf"
_NAMESPACES_MAX: Final = 100
_SUBNETS_TRIED: Final = 50
_COMMAND_TIMEOUT_S: Final = 10.0
_OURS: Final = re.compile(rf"({_PREFIX}(\d+)\.\d+)(?:-\d+)?")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace and its address, at which it reaches the host and the network's other namespaces."""

    name: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """What to put before a command, so that it runs inside, under the same process id."""
        return ("ip", "netns", "exec", self.name)

    def cut(self, *, incoming: bool = True, outgoing: bool = True, port: int | None = None) -> None:
        """Drop packets in one direction or both until healed, all or those of TCP to or from a port outside.

        With `incoming` alone the namespace is heard and hears nothing; with `outgoing` alone it hears and isn't heard.
        Replaces an earlier cut.
        """
        assert incoming or outgoing, "say which direction"
        rules = ["table inet cut", "delete table inet cut", "table inet cut {"]
        for is_cut, hook, interface, field in (
            (incoming, "input", "iifname", "sport"),
            (outgoing, "output", "oifname", "dport"),
        ):
            if is_cut:
                what = "" if port is None else f"tcp {field} {port} "
                rules.append(f'chain {hook} {{ type filter hook {hook} priority 0; {interface} != "lo" {what}drop; }}')
        _run(*self.prefix, "nft", "-f", "-", text="\n".join([*rules, "}\n"]))

    def heal(self) -> None:
        """End the cut."""
        _run(*self.prefix, "nft", "flush", "ruleset")


class Network:
    """A bridge on the host and the namespaces on it; a context manager. `host` is the host's address in it."""

    def __init__(self) -> None:
        self._bridge = f"{_PREFIX}{os.getpid()}.{next(_numbers)}"
        self._namespaces: list[Namespace] = []
        self._subnet = ""

    @property
    def host(self) -> str:
        """Where namespaces reach what listens on the host."""
        return f"{self._subnet}.1"

    def __enter__(self) -> Self:
        _require_tools()
        remove_leftovers()
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            self._subnet = _free_subnet()
            _run("ip", "address", "add", f"{self.host}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def namespace(self) -> Namespace:
        """Make another namespace."""
        nth = len(self._namespaces)
        assert nth < _NAMESPACES_MAX
        namespace = Namespace(f"{self._bridge}-{nth}", f"{self._subnet}.{nth + 2}")
        self._namespaces.append(namespace)
        name = namespace.name
        _run("ip", "netns", "add", name)
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("ip", "link", "set", name, "master", self._bridge, "up")
        _run("ip", "-n", name, "address", "add", f"{namespace.address}/24", "dev", "eth0")
        _run("ip", "-n", name, "link", "set", "eth0", "up")
        _run("ip", "-n", name, "link", "set", "lo", "up")
        return namespace

    def _remove(self) -> None:
        _remove_network(self._bridge)
        self._namespaces.clear()


def remove_leftovers() -> None:
    """Remove what runs have made that are dead, processes inside included."""
    found = [match for name in _names() if (match := _OURS.fullmatch(name))]
    for bridge in {match[1] for match in found if not Path("/proc", match[2]).exists()}:
        _remove_network(bridge)


def _remove_network(bridge: str) -> None:
    """Remove as much as can be removed, and then say what can't."""
    failures = []
    for name in sorted(_names(), reverse=True):  # the bridge last
        try:
            if name == bridge:
                _run("ip", "link", "delete", name)
            elif name.startswith(f"{bridge}-"):
                _remove_namespace(name)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, failures


def _remove_namespace(name: str) -> None:
    # One that still has processes would live on without a name.
    for pid in _run("ip", "netns", "pids", name).split():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run("ip", "netns", "delete", name)
    # The kernel removes a namespace's interfaces some time later, unless asked; or has done so by now.
    subprocess.run(["ip", "link", "delete", name], capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False)


def _names() -> set[str]:
    namespaces = {line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line}
    bridges = {link["ifname"] for link in _read("ip", "-json", "link", "show", "type", "bridge")}
    return namespaces | bridges


def _free_subnet() -> str:
    """Return the first three bytes of a private range that the host has no address in."""
    addresses = [each.get("local", "") for link in _read("ip", "-json", "address") for each in link["addr_info"]]
    for _ in range(_SUBNETS_TRIED):
        subnet = f"10.{random.randint(200, 249)}.{random.randint(0, 255)}"
        if not any(address.startswith(f"{subnet}.") for address in addresses):
            return subnet
    pytest.fail("no free range between 10.200.0.0 and 10.249.255.0 for a network of namespaces")


def _require_tools() -> None:
    missing = [
        package for program, package in (("ip", "iproute2"), ("nft", "nftables")) if shutil.which(program) is None
    ]
    if missing:
        pytest.fail(f"this test makes network namespaces: install {' and '.join(missing)} (Debian's package names)")
    if os.geteuid() != 0:
        pytest.fail("this test makes network namespaces: run it as root (CAP_NET_ADMIN, CAP_SYS_ADMIN)")


def _read(*command: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_run(*command) or "[]")
    return [each for each in found if each]


def _run(*command: str, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout
