"""What the controller sees of a node's address, over real connections and over made ones."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from processor.ownership.connections import NodeConnections, OpenConnection, Place, watch
from processor.ownership.machine.refusals import REFUSALS_MIN, SPAN_S, NodeAddress, Refusals, Seen, Sighting
from statehouse.local.ports import LOOPBACK
from tests.support.polling import poll_until

DEADLINE_S = 20.0


class Listener:
    """A process that listens; its kernel accepts connections whether it takes them or not."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.create_server((LOOPBACK, port))
        self._socket.settimeout(DEADLINE_S)
        self.port: int = self._socket.getsockname()[1]
        self.taken: list[socket.socket] = []

    def take(self) -> socket.socket:
        self.taken.append(self._socket.accept()[0])
        return self.taken[-1]

    def close(self) -> None:
        for each in (*self.taken, self._socket):
            each.close()


@contextmanager
def connected(address: NodeAddress) -> Iterator[queue.Queue[Sighting]]:
    """Hold a connection to an address, and check that nothing is left in the end."""
    seen: queue.Queue[Sighting] = queue.Queue()
    broken: list[Exception] = []
    connections = NodeConnections("test", seen.put, broken.append)
    connections.start()
    connections.follow(frozenset({address}))
    try:
        yield seen
    finally:
        connections.stop()
    assert not broken
    assert not any(thread.name == "ownership-connections-test" for thread in threading.enumerate())


def address_of(listener: Listener, host: str = LOOPBACK) -> NodeAddress:
    return NodeAddress("n0", "first", host, listener.port)


@pytest.mark.feature("new-active-within")
def test_a_process_that_ends_is_seen_to_refuse_within_moments() -> None:
    listener = Listener()
    with connected(address_of(listener)) as seen:
        assert seen.get(timeout=DEADLINE_S).seen is Seen.ACCEPTED
        listener.take().sendall(b"a server may speak first")
        listener.close()
        refusals = Refusals()
        refusals.see(Seen.ACCEPTED, 0.0)
        found: list[Sighting] = []
        while not refusals.prove_end:
            found.append(seen.get(timeout=DEADLINE_S))
            refusals.see(found[-1].seen, found[-1].at)
        assert {each.seen for each in found} == {Seen.REFUSED}
        assert len(found) >= REFUSALS_MIN
        assert found[-1].at - found[0].at >= SPAN_S


def test_a_process_that_takes_no_connection_keeps_the_one_it_has() -> None:
    listener = Listener()
    with connected(address_of(listener)) as seen:
        assert seen.get(timeout=DEADLINE_S).seen is Seen.ACCEPTED
        with pytest.raises(queue.Empty):
            seen.get(timeout=0.5)
    listener.close()


def test_a_connection_that_the_node_closes_is_made_again_but_not_again_and_again() -> None:
    listener = Listener()
    with connected(address_of(listener)) as seen:
        found = []
        for _ in range(6):
            found.append(seen.get(timeout=DEADLINE_S))
            listener.take().close()
        assert {each.seen for each in found} == {Seen.ACCEPTED}
        assert found[4].at - found[0].at < 1.0, "a process that ends may still be connected to a few times"
        assert found[5].at - found[4].at >= 1.0
    listener.close()


def test_an_address_that_nobody_can_resolve_says_nothing() -> None:
    with connected(NodeAddress("n0", "first", "nowhere.invalid", 1)) as seen:
        assert seen.get(timeout=DEADLINE_S).seen is Seen.NOTHING


def test_who_is_followed_no_more_is_let_go() -> None:
    listener = Listener()
    seen: queue.Queue[Sighting] = queue.Queue()
    connections = NodeConnections("test", seen.put, lambda _error: None)
    connections.start()
    connections.follow(frozenset({address_of(listener)}))
    assert seen.get(timeout=DEADLINE_S).seen is Seen.ACCEPTED
    other_end = listener.take()
    other_end.settimeout(DEADLINE_S)
    connections.follow(frozenset())
    with suppress(ConnectionResetError):
        assert other_end.recv(1) == b"", "it is closed"
    connections.stop()
    listener.close()


def test_a_defect_is_told() -> None:
    told: list[Exception] = []

    def note(_sighting: Sighting) -> None:
        raise ValueError("a defect")

    listener = Listener()
    connections = NodeConnections("test", note, told.append)
    connections.start()
    connections.follow(frozenset({address_of(listener)}))
    poll_until(lambda: told, DEADLINE_S, "the defect")
    assert str(told[0]) == "a defect"
    connections.stop()
    listener.close()


class _Made:
    """A connection that ends when told to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.end = asyncio.Event()

    async def ended(self) -> None:
        await self.end.wait()

    def close(self) -> None:
        """There is nothing to close."""


def test_refusals_are_asked_of_the_address_that_accepted_until_something_else_fails() -> None:
    """A name may stand for another address meanwhile."""

    async def play() -> list[Place]:
        asked: list[Place] = []
        connection = _Made(("10.0.0.1", 7))
        enough = asyncio.Event()

        async def dial(place: Place) -> OpenConnection:
            asked.append(place)
            if len(asked) == 1:
                return connection
            if len(asked) == 4:
                raise TimeoutError
            if len(asked) == 5:
                enough.set()
            raise ConnectionRefusedError

        node = NodeAddress("n0", "first", "node-0", 7)
        task = asyncio.create_task(watch(node, dial, lambda _sighting: None, asyncio.get_running_loop().time))
        connection.end.set()
        async with asyncio.timeout(DEADLINE_S):
            await enough.wait()
        task.cancel()
        return asked

    assert asyncio.run(play()) == [("node-0", 7), *[("10.0.0.1", 7)] * 3, ("node-0", 7)]


class _Gone:
    """A connection that was broken off before anybody has asked whose it is: the system knows nothing of it then."""

    def __init__(self) -> None:
        self.transport = self
        self.is_closed = False

    def get_extra_info(self, _name: str) -> None:
        return None

    def abort(self) -> None:
        self.is_closed = True


def test_a_connection_that_is_broken_off_immediately_says_nothing_and_is_made_again_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a node that is killed meanwhile: what was in its queue is reset, and what follows is refused."""
    made, real = [], asyncio.open_connection

    async def opened(host: str, port: int) -> tuple[Any, Any]:
        if len(made) == 1:
            made.append(_Gone())
            return asyncio.StreamReader(), made[-1]
        reader, writer = await real(host, port)
        made.append(writer)
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", opened)
    listener = Listener()
    with connected(address_of(listener)) as seen:
        assert seen.get(timeout=DEADLINE_S).seen is Seen.ACCEPTED
        listener.close()
        broken, refused = (seen.get(timeout=DEADLINE_S) for _ in range(2))
    assert (broken.seen, refused.seen) == (Seen.NOTHING, Seen.REFUSED)
    assert made[1].is_closed
    assert refused.at - broken.at < 0.15, "not at leisure"
