"""Ports for processes that must know their port before they start.

A server of ours binds port 0 and reads the port back. A broker can't: its advertised address is part of its
configuration. So a port is picked here, and reserved against all processes that pick here: two clusters that start at
once, or a server that comes back to its port, don't take it from one another. Other programs don't know of the
reservation, so a caller must still be ready to lose a race.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from statehouse.local.errors import LocalError, PortTaken

LOOPBACK: Final = "127.0.0.1"
ROUTER_METRICS: Final = "router's metrics"
"""The name of that port."""

# Below the range from which Linux (32768 on) and macOS (49152 on) pick ports for outgoing connections: a port given
# by the system itself could be taken by any client while a broker restarts, and the restart would then fail.
_LOWEST: Final = 20_000
_HIGHEST: Final = 32_000
_ATTEMPTS_MAX: Final = 200

# Its own generator: a test that seeds the global one must not make two processes pick the same ports.
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of a cluster's parts; nodes take `first_node` and those that follow. 0 is any free one."""

    kafka: int = 9092
    router: int = 7100
    http: int = 7000
    first_node: int = 7101

    @classmethod
    def free(cls) -> ClusterPorts:
        """Return any free ports."""
        return cls(0, 0, 0, 0)

    def resolved(self, nodes: Iterable[str]) -> dict[str, int]:
        """Return the port of each part by its name.

        Raises:
            LocalError: two parts would have the same port.

        """
        ports = {"kafka": self.kafka, "router": self.router, "http": self.http}
        ports |= {name: self.first_node + index if self.first_node else 0 for index, name in enumerate(nodes)}
        ports[ROUTER_METRICS] = 0  # only the page asks there
        taken = {port for port in ports.values() if port}
        if len(taken) < sum(1 for port in ports.values() if port):
            raise LocalError(f"two parts can't have one port: {ports}. Choose others by the flags.")
        for name in [name for name, port in ports.items() if port == 0]:
            while ports[name] == 0 or ports[name] in taken:
                ports[name] = free_port()
            taken.add(ports[name])
        return ports


def free_port() -> int:
    """Return a port on which nothing listens now; no other caller gets it here while this process lives.

    Raises LocalError if none is found, which happens only when nearly all of them are in use.
    """
    for _ in range(_ATTEMPTS_MAX):
        port = _random.randrange(_LOWEST, _HIGHEST)
        if _is_free(port) and _reserve(port):
            return port
    raise LocalError(
        f"no free port between {_LOWEST} and {_HIGHEST} in {_ATTEMPTS_MAX} tries. Stop what occupies them."
    )


def ensure_free(port: int, setting: str = "--port") -> None:
    """Raise PortTaken if something listens on `port`; `setting` names in the message what to change."""
    if not _is_free(port):
        raise PortTaken(
            f"port {port} on {LOOPBACK} is in use. Stop whatever listens there, or choose another with {setting} "
            "(0 picks a free one)."
        )


# The ports this process has reserved: its own locks would not stop it from taking them again.
_reserved: Final[set[int]] = set()
_reserving: Final = threading.Lock()


def _reserve(port: int) -> bool:
    """Lock the port's byte of a file that all of this user's processes share; the lock ends with the process."""
    file = _reservations()
    with _reserving:
        if port in _reserved:
            return False
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except (BlockingIOError, PermissionError):  # POSIX allows both for a lock that is held
            return False
        _reserved.add(port)
        return True


@cache
def _reservations() -> int:
    """The file, never closed: closing any descriptor of it would end all of the process's locks."""
    path = Path(tempfile.gettempdir()) / f"statehouse-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java's server sockets do: connections of an earlier broker in TIME_WAIT must not count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        return True
