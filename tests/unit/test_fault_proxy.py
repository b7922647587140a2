"""The fault proxy itself, between plain sockets."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.fault_proxy import BOTH, Direction, FaultProxy
from tests.support.polling import poll_until

# Bytes on the loopback address arrive within this, and what must not arrive is waited for as long.
SHORT_S = 0.15


class _Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(65_536):
                self.server.heard += len(data)  # type: ignore[attr-defined]
                self.request.sendall(data)
        except OSError:
            pass


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    heard = 0


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: _Server) -> Iterator[FaultProxy]:
    with FaultProxy(server.server_address[1]) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: FaultProxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        yield client


def connect(proxy: FaultProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def receive(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := client.recv(65_536)):
        data += more
    return data


def hears_nothing(client: socket.socket) -> bool:
    client.settimeout(SHORT_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_passes_bytes_and_a_half_close_both_ways(client: socket.socket) -> None:
    data = bytes(range(256)) * 4_000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""


@pytest.mark.parametrize("direction", Direction)
def test_stalled_bytes_arrive_in_order_once_healed(
    proxy: FaultProxy, server: _Server, client: socket.socket, direction: Direction
) -> None:
    proxy.stall(direction)
    client.sendall(b"one")
    assert hears_nothing(client)
    assert (server.heard > 0) == (direction is Direction.DOWNSTREAM), "the other way goes on"
    client.sendall(b"two")
    proxy.heal()
    assert receive(client, 6) == b"onetwo"


def test_stall_takes_a_bounded_number_of_bytes(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.stall(*BOTH)
    client.settimeout(1.0)
    sent = 0
    while sent < 100_000_000:
        try:
            sent += client.send(b"x" * 65_536)
        except TimeoutError:  # the proxy takes no more, and no more fits into the kernel's buffers
            break
    assert sent < 100_000_000
    client.settimeout(10)
    proxy.heal()
    assert len(receive(client, sent)) == sent


@pytest.mark.parametrize("direction", Direction)
def test_bytes_in_a_black_hole_never_arrive_and_healing_resets(
    proxy: FaultProxy, server: _Server, client: socket.socket, direction: Direction
) -> None:
    proxy.blackhole(direction)
    client.sendall(b"lost")
    assert hears_nothing(client)
    assert (server.heard > 0) == (direction is Direction.DOWNSTREAM)
    with connect(proxy) as unharmed:
        proxy.heal()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        unharmed.sendall(b"fine")
        assert receive(unharmed, 4) == b"fine"


def test_delay_is_added_to_each_way(proxy: FaultProxy, client: socket.socket) -> None:
    proxy.delay(SHORT_S, *BOTH)
    began_at = time.monotonic()
    client.sendall(b"a")
    client.sendall(b"b")
    assert receive(client, 2) == b"ab"
    assert time.monotonic() - began_at >= 2 * SHORT_S


def test_reset_ends_open_connections_and_later_ones_if_told(proxy: FaultProxy, client: socket.socket) -> None:
    client.sendall(b"a")
    assert receive(client, 1) == b"a"
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    with connect(proxy) as later:
        later.sendall(b"b")
        assert receive(later, 1) == b"b"
        proxy.reset(new=True)
        with pytest.raises(ConnectionResetError):
            later.recv(1)
    with pytest.raises(ConnectionResetError), connect(proxy) as refused:
        refused.recv(1)
    proxy.heal()
    with connect(proxy) as healed:
        healed.sendall(b"c")
        assert receive(healed, 1) == b"c"


def test_refuse_concerns_new_connections_only(proxy: FaultProxy, client: socket.socket) -> None:
    client.sendall(b"a")
    assert receive(client, 1) == b"a"
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    client.sendall(b"b")
    assert receive(client, 1) == b"b"
    proxy.heal()
    connect(proxy).close()


def test_target_that_is_not_there_resets(server: _Server, proxy: FaultProxy) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_forgets_connections_that_ended(proxy: FaultProxy) -> None:
    with connect(proxy) as client:
        client.sendall(b"a")
        assert receive(client, 1) == b"a"
        assert proxy.connections == 1
    poll_until(lambda: proxy.connections == 0, 10, "the connection to be forgotten")
