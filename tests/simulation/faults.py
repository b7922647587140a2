"""Faults: which ones a fleet meets, when, and for how long, drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product

from statehouse.contract.membership import TaskState
from tests.simulation.controller import STEPS
from tests.simulation.fleet import Fleet
from tests.simulation.node import SimulatedNode
from tests.simulation.proxy import SNAPSHOT_HOLDS_S
from tests.simulation.world import KAFKA

_PAUSE_S = 0.8
_LONG = 1.8
"""How many session timeouts a long fault lasts at most."""

KINDS = (
    "node crashes",
    "node crashes and loses its disk",
    "node crashes with its host",
    "node stops and drains",
    "node stops at once",
    "node bounces",
    "node freezes",
    "node joins",
    "node leaves",
    "second process under one instance id",
    "wall clock jumps",
    "task fails",
    "cut from kafka, both ways",
    "cut from kafka, to it",
    "cut from kafka, from it",
    "cut from router, both ways",
    "cut from router, one way",
    "cut from controller",
    "lossy link",
    "slow link",
    "controller crashes",
    "controller stops",
    "controller is replaced",
    "controller freezes",
    "controller is trapped at a step",
    "controller cut from kafka",
    "router restarts",
    "router cut from kafka",
    "proxy hears late",
    "control topics are compacted",
)


class Faults:
    """Draws faults until told to stop, then takes back what can be taken back."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._world = fleet, fleet.world
        self._undo: dict[int, Callable[[], object]] = {}
        self._undone = 0
        self._is_over = False
        self._joined = 0
        self._kinds: dict[str, Callable[[str], bool]] = {
            kind: next(
                act
                for prefix, act in (
                    ("node crashes", self._crash),
                    ("node stops", self._stop),
                    ("node bounces", self._bounce),
                    ("node freezes", self._freeze),
                    ("node joins", self._join),
                    ("node leaves", self._leave),
                    ("second", self._twin),
                    ("wall clock", self._clock_jumps),
                    ("task fails", self._fail_task),
                    ("cut from kafka", self._cut_from_kafka),
                    ("cut from router", self._cut_from_router),
                    ("cut from controller", self._cut_from_controller),
                    ("lossy", self._disturb),
                    ("slow", self._disturb),
                    ("controller cut", self._cut_controller),
                    ("controller", self._controller),
                    ("router restarts", self._restart_router),
                    ("router cut", self._cut_router),
                    ("proxy hears late", self._delay_proxy),
                    ("control topics", self._compact),
                )
                if kind.startswith(prefix)
            )
            for kind in KINDS
        }

    async def run(self, seconds: float) -> None:
        """Let faults happen for a time."""
        rng, over_at = self._world.rng, self._world.now + seconds
        while self._world.now < over_at:
            await asyncio.sleep(rng.expovariate(1 / _PAUSE_S))
            kind = rng.choice(KINDS)
            if self._kinds[kind](kind):
                self._world.counts[f"fault: {kind}"] += 1

    def end(self) -> None:
        """Take back all faults: links are well, everybody runs again who has not left for good."""
        self._is_over = True
        self._world.disks_refuse = False
        fleet = self._fleet
        fleet.trap = None
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()
        for process in (*fleet.nodes.values(), *fleet.controllers):
            if process.is_frozen:
                process.thaw()
        for name in fleet.machines:
            fleet.start_node(name)
        if not (fleet.settings.standby_controllers and fleet.settings.driver_stays_away):
            fleet.start_controller()

    # Helpers.

    def _for_a_while(self, undo: Callable[[], object], *, is_long: bool | None = None) -> float:
        """Have something undone later; return when."""
        rng, timeout_s = self._world.rng, self._fleet.settings.session_timeout_s
        if is_long is None:
            is_long = rng.random() < 0.5
        seconds = rng.uniform(timeout_s, _LONG * timeout_s) if is_long else rng.uniform(0.2, 0.9 * timeout_s)
        number = self._undone = self._undone + 1
        self._undo[number] = undo

        def due() -> None:
            if self._undo.pop(number, None) is not None:
                undo()

        self._world.loop.call_later(seconds, due)
        return seconds

    def _node(self) -> SimulatedNode | None:
        """Return a node to do something to, if two others are left alone at least."""
        well = [node for node in self._fleet.running() if not node.is_frozen and not node.is_stopping]
        return self._world.rng.choice(well) if len(well) > 1 else None

    def _restart_later(self, name: str, *, is_long: bool | None = None) -> None:
        self._for_a_while(
            lambda: self._fleet.start_node(name) if name in self._fleet.machines else None, is_long=is_long
        )

    def _cut(self, *links: tuple[str, str]) -> None:
        net = self._world.net
        for link in links:
            net.cut(*link)

        def heal() -> None:
            for link in links:
                net.heal(*link)

        seconds = self._for_a_while(heal)
        self._world.note("FAULT", "cut {} for {:.1f} s", links, seconds)

    # Faults. Each says whether it could be done.

    def _crash(self, kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        loses_writes = self._world.rng.random() < 0.5
        node.crash(loses_writes=loses_writes, loses_disk="disk" in kind, loses_host="host" in kind)
        self._restart_later(node.machine)
        return True

    def _stop(self, kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        node.stop(drain="drains" in kind)
        self._restart_later(node.machine)
        return True

    def _bounce(self, _kind: str) -> bool:
        """A static member is back within its session."""
        if (node := self._node()) is None:
            return False
        node.crash(loses_writes=False, loses_disk=False)
        self._restart_later(node.machine, is_long=False)
        return True

    def _freeze(self, _kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        node.freeze()
        seconds = self._for_a_while(node.thaw)
        self._world.note("FAULT", "{} frozen for {:.1f} s", node.name, seconds)
        return True

    def _join(self, _kind: str) -> bool:
        if self._joined == 2:
            return False
        self._joined += 1
        name = f"j{self._joined}"
        instance_id = "" if self._world.rng.random() < 0.2 else name
        self._fleet.add_machine(name, self._world.rng.choice(self._fleet.settings.racks), instance_id)
        self._fleet.start_node(name)
        return True

    def _leave(self, _kind: str) -> bool:
        """A node is taken away for good."""
        if len(self._fleet.machines) < 4 or (node := self._node()) is None or node.machine.endswith("-twin"):
            return False
        node.stop(drain=self._world.rng.random() < 0.7)
        self._fleet.machines.pop(node.machine, None)
        return True

    def _twin(self, _kind: str) -> bool:
        """Another machine is started under the instance id of one that runs; the old one is not meant to come back."""
        node = self._node()
        if node is None or node.at.is_dynamic or f"{node.machine}-twin" in self._fleet.machines:
            return False
        if self._world.rng.random() < 0.5:
            node.freeze()
            self._for_a_while(node.thaw)
        name = f"{node.machine}-twin"
        self._fleet.add_machine(name, node.at.rack, node.instance_id)
        self._fleet.machines.pop(node.machine, None)
        self._fleet.start_node(name)
        return True

    def _clock_jumps(self, _kind: str) -> bool:
        machine = self._world.rng.choice(list(self._fleet.machines.values()))
        machine.skew_s += self._world.rng.choice((-30.0, -5.0, 5.0, 30.0))
        self._world.note("FAULT", "the wall clock of {} jumps, {:+.1f} s off", machine.name, machine.skew_s)
        return True

    def _fail_task(self, _kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        running = [task for task, replica in node.replicas.items() if replica.state is TaskState.RUNNING]
        if not running:
            return False
        task = self._world.rng.choice(running)
        self._world.note("FAULT", "{} fails on {}", task, node.name)
        node.tasks.fail(task, wiped=self._world.rng.random() < 0.5)
        return True

    def _cut_from_kafka(self, kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        to, back = (node.machine, KAFKA), (KAFKA, node.machine)
        self._cut(*{"both ways": (to, back), "to it": (to,), "from it": (back,)}[kind.rpartition(", ")[2]])
        return True

    def _cut_from_router(self, kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        router = self._world.rng.choice(self._fleet.routers)
        links = [(node.machine, router.name), (router.name, node.machine)]
        self._cut(*(links if "both" in kind else [self._world.rng.choice(links)]))
        return True

    def _cut_from_controller(self, _kind: str) -> bool:
        controllers = self._fleet.living_controllers()
        if not controllers or (node := self._node()) is None:
            return False
        for controller in controllers:
            self._cut((node.machine, controller.machine), (controller.machine, node.machine))
        return True

    def _disturb(self, kind: str) -> bool:
        if (node := self._node()) is None:
            return False
        rng, net = self._world.rng, self._world.net
        other = rng.choice([KAFKA, *(router.name for router in self._fleet.routers)])
        links = list(product((node.machine,), (other,))) + list(product((other,), (node.machine,)))
        for link in links:
            if kind.startswith("lossy"):
                net.disturb(*link, loss=rng.uniform(0.2, 0.7))
            else:
                net.disturb(*link, delay_s=rng.uniform(0.1, 1.0))

        def mend() -> None:
            for link in links:
                net.disturb(*link)

        seconds = self._for_a_while(mend)
        self._world.note("FAULT", "{} {} for {:.1f} s", kind, links, seconds)
        return True

    def _controller(self, kind: str) -> bool:
        fleet = self._fleet
        acting = [each for each in fleet.living_controllers() if not each.is_frozen]
        if kind == "controller is trapped at a step":
            fleet.trap = (self._world.rng.choice(STEPS), self._world.rng.choice(("crash", "freeze")))
            if fleet.trap[0] in {"read", "open", "started"}:
                fleet.start_controller()
            return True
        if not acting:
            return False
        controller = self._world.rng.choice(acting)
        if kind in {"controller crashes", "controller stops"}:
            if kind == "controller stops":
                controller.stop()
            else:
                self._world.note(controller.name, "crashes")
                controller.kill()
            self._for_a_while(partial(fleet.start_controller, is_standby=controller.is_standby))
        elif kind == "controller freezes":
            self._world.note(controller.name, "frozen")
            controller.freeze()
            self._for_a_while(controller.thaw)
        else:
            fleet.start_controller()
        return True

    def _cut_controller(self, _kind: str) -> bool:
        acting = self._fleet.living_controllers()
        if not acting:
            return False
        name = self._world.rng.choice(acting).machine
        links = [(name, KAFKA), (KAFKA, name)]
        self._cut(*self._world.rng.choice((links, links[:1], links[1:])))
        return True

    def _restart_router(self, _kind: str) -> bool:
        self._world.task(self._fleet.restart_router(self._world.rng.randrange(len(self._fleet.routers))))
        return True

    def _cut_router(self, _kind: str) -> bool:
        name = self._world.rng.choice(self._fleet.routers).machine
        self._cut((name, KAFKA), (KAFKA, name))
        return True

    def _delay_proxy(self, _kind: str) -> bool:
        """What a router tells its proxy comes late, up to as long as a snapshot holds and a little longer."""
        proxy = self._world.rng.choice(self._fleet.routers).proxy
        if proxy is None or proxy.delay_s:
            return False
        proxy.delay_s = self._world.rng.uniform(0.2, 1.2 * SNAPSHOT_HOLDS_S)

        def mend() -> None:
            proxy.delay_s = 0.0

        seconds = self._for_a_while(mend)
        self._world.note("FAULT", "a proxy hears {:.1f} s late for {:.1f} s", proxy.delay_s, seconds)
        return True

    def _compact(self, _kind: str) -> bool:
        self._fleet.kafka.assignments.compact()
        self._fleet.kafka.members.compact()
        return True
