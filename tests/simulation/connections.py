"""Simulated connections of a controller to nodes' addresses, as the kernels at both ends have them.

A process that has ended, or listens no more, has its connections closed, and further ones are refused. A frozen one has
them accepted. Where the host is gone or a link is cut, nothing comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from processor.ownership.connections import OpenConnection, Place
from tests.simulation.node import SimulatedNode
from tests.simulation.world import Process, World, settle

_CONNECTS_WITHIN_S = 1.0
_IDLE_S = 10.0
"""A node closes a connection over which nothing comes after this time."""
_SENT_AGAIN_S = 0.5


class SimulatedConnection:
    """A connection that a node's kernel has accepted."""

    def __init__(self, place: Place, caller: Process) -> None:
        self.place = place
        self._caller = caller
        self.closed: asyncio.Future[None] = caller.world.loop.create_future()

    async def ended(self) -> None:
        await asyncio.shield(self.closed)
        await self._caller.turn()

    def close(self) -> None:
        """Nobody misses this end: the other one is closed after a while."""


class SimulatedDial:
    """Connects a controller to the processes that run at the machines now."""

    def __init__(self, caller: Process, nodes: Mapping[str, SimulatedNode]) -> None:
        self._caller, self._world, self._nodes = caller, caller.world, nodes

    async def __call__(self, place: Place) -> OpenConnection:
        reply: asyncio.Future[SimulatedConnection | None] = self._world.loop.create_future()
        machine = place[0]

        def arrive() -> None:
            process = self._nodes.get(machine)
            if process is not None and process.is_host_gone:
                return
            is_accepted = process is not None and process.is_alive and process.is_listening
            connection = SimulatedConnection(place, self._caller) if is_accepted else None
            if process is not None and connection is not None:
                _hold(self._world, process, connection, self._caller.machine)
            self._world.net.send(machine, self._caller.machine, lambda: settle(reply, connection))

        self._caller.send(machine, arrive)
        try:
            connection = await asyncio.wait_for(reply, _CONNECTS_WITHIN_S)
        finally:
            await self._caller.turn()
        if connection is None:
            raise ConnectionRefusedError
        return connection


def _hold(world: World, process: SimulatedNode, connection: SimulatedConnection, caller: str) -> None:
    """Have a node's end of a connection closed with its process, or after a while."""
    is_told = False

    def tell() -> None:
        # Where a link loses it, it is sent again.
        if not connection.closed.done() and not process.is_host_gone:
            world.net.send(process.machine, caller, lambda: settle(connection.closed, None))
            world.loop.call_later(_SENT_AGAIN_S, tell)

    def end() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            tell()

    process.when_closed.append(end)
    world.loop.call_later(_IDLE_S, lambda: process.enter(end))
