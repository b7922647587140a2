from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from statehouse.local import ports
from statehouse.local.errors import LocalError, PortTaken
from statehouse.local.ports import LOOPBACK, ensure_free, free_port


def test_a_free_port_can_be_bound() -> None:
    with socket.create_server((LOOPBACK, free_port())):
        pass


def test_free_ports_are_below_those_of_outgoing_connections() -> None:
    assert all(1024 < free_port() < 32_768 for _ in range(50))


def test_no_two_pickers_are_given_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither this process nor, while it lives, another."""
    monkeypatch.setattr(ports, "_LOWEST", lowest := free_port() // 10 * 10)
    monkeypatch.setattr(ports, "_HIGHEST", lowest + 10)
    picked = set()
    with suppress(LocalError):
        while (port := free_port()) not in picked:
            picked.add(port)
    with pytest.raises(LocalError, match="no free port between"):
        free_port()
    pick_elsewhere = f"""
from statehouse.local import ports
ports._LOWEST, ports._HIGHEST = {lowest}, {lowest + 10}
print(ports.free_port())
"""
    other = subprocess.run([sys.executable, "-c", pick_elsewhere], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "no free port between" in other.stderr


def test_a_taken_port_is_named_with_the_setting_to_change() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} .* choose another with kafka\.port"):
            ensure_free(port, "kafka.port")


def test_a_port_is_free_again_right_after_its_server_closed() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)):
            accepted, _ = server.accept()
            accepted.close()  # the server's side closes first, and lingers in TIME_WAIT
    ensure_free(port)
