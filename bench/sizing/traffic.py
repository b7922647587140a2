"""What processes have received and sent over TCP, by the kernel's own count for each connection (`ss -ti`)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection
from typing import Final

_COUNT: Final = re.compile(r"bytes_(?:sent|received):(\d+)")
_PORT: Final = re.compile(r":(\d+)$")
_PID: Final = re.compile(r"pid=(\d+)")


def bytes_at(ports: Collection[int]) -> int:
    """Return the bytes of all open connections to servers at these ports, as the servers count them."""
    return sum(total for local, _, _, total in _connections() if local in ports)


def bytes_with(port: int, pids: Collection[int]) -> int:
    """Return the bytes of all open connections of processes to a port, as the processes count them."""
    return sum(total for _, peer, owner, total in _connections() if peer == port and owner in pids)


def _connections() -> list[tuple[int, int, int, int]]:
    """Return (local port, peer's port, process id, bytes sent and received) of each established connection."""
    out = subprocess.run(["ss", "-tinpHO"], capture_output=True, text=True, check=True).stdout
    found = []
    for line in out.splitlines():
        words = line.split()
        ports = [int(match[1]) for word in words[3:5] if (match := _PORT.search(word))]
        owner = _PID.search(line)
        if len(ports) == 2:
            total = sum(map(int, _COUNT.findall(line)))
            found.append((ports[0], ports[1], int(owner[1]) if owner else 0, total))
    return found
