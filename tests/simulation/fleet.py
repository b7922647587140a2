"""The simulated fleet as a whole: its processes, the writes, and the faults."""

from __future__ import annotations

from collections.abc import Iterator

from processor.ownership.machine.numbering import numbered
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import TaskId
from tests.simulation.callers import Callers, RulesFile
from tests.simulation.checks import Checks
from tests.simulation.clients import Clients
from tests.simulation.controller import SimulatedController
from tests.simulation.kafka import Changelog, Kafka
from tests.simulation.moments import MomentReaders
from tests.simulation.node import Machine, SimulatedNode
from tests.simulation.processor import SimulatedProcessor
from tests.simulation.router import SimulatedRouter
from tests.simulation.settings import SimulationSettings
from tests.simulation.world import World


class Fleet:
    """Everything that runs, and the hands that start and stop it."""

    def __init__(self, world: World, settings: SimulationSettings) -> None:
        self.world, self.settings = world, settings
        self.kafka = Kafka(world)
        self.checks = Checks(world, self.kafka, settings.ownership)
        self.machines: dict[str, Machine] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        """The newest process on each machine."""
        self.controllers: list[SimulatedController] = []
        self.routers: list[SimulatedRouter] = []
        self.rules = RulesFile(world, self.checks, settings)
        self.callers = Callers(world, settings, self.routers, self.nodes)
        self.clients = Clients(world, self.kafka, self.checks, settings, self.routers, self.nodes)
        self.processor = SimulatedProcessor(world, self.kafka, self.checks, settings, self.nodes)
        self.moments = MomentReaders(world, self.kafka, settings, self.processor, self.nodes)
        self.trap: tuple[str, str] | None = None
        """A controller's step at which something is to happen to it, and what."""
        self._is_writing = True
        self._controllers_started = 0
        specs, _ = numbered(settings.stores, {}, {})
        for spec in specs.values():
            for partition in range(spec.partition_count):
                self.kafka.changelogs[spec.name, partition] = Changelog(world, spec, partition)
        self._by_partition = {
            place: [
                key.encode()
                for key in (f"k{number}" for number in range(settings.keys * log.spec.partition_count))
                if partition_for(key.encode(), log.spec.partition_count) == place[1]
            ]
            for place, log in self.kafka.changelogs.items()
        }

    def start(self) -> None:
        """Write what is there first, start everybody."""
        for log in self.kafka.changelogs.values():
            for _ in range(self.settings.first_records // 10):
                self._write(log, 10)
        self.start_controller()
        for _ in range(self.settings.standby_controllers):
            self.start_controller(is_standby=True)
        for number in range(self.settings.nodes):
            is_dynamic = self.world.rng.random() < 0.2
            rack = self.settings.racks[number % len(self.settings.racks)]
            self.add_machine(f"n{number}", rack, "" if is_dynamic else f"n{number}")
            self.world.loop.call_later(self.world.rng.uniform(0.0, 1.5), self.start_node, f"n{number}")
        for number in range(self.settings.routers):
            self.routers.append(self._router(f"r{number}"))
        self.processor.start(self._write)
        self.moments.start()
        self._write_on()
        self.clients.start()
        self.callers.start()

    # Writes.

    def _write_on(self) -> None:
        if self._is_writing:
            rng = self.world.rng
            self.world.loop.call_later(rng.expovariate(self.settings.writes_per_s), self._write_on)
            log, count = rng.choice(list(self.kafka.changelogs.values())), rng.randint(1, 5)
            if log.spec.name in self.processor.built:
                self._write(log, count)

    def _write(self, log: Changelog, count: int) -> None:
        rng, keys = self.world.rng, self._by_partition[log.spec.name, log.partition]
        if keys and count:
            self.world.counts["records written"] += count
            log.append(
                [
                    (rng.choice(keys), None if rng.random() < 0.1 else b"%d" % (log.end + number))
                    for number in range(count)
                ],
                self.processor.batch_id,
            )

    def stop_writing(self) -> None:
        self._is_writing = False

    # Nodes.

    def add_machine(self, name: str, rack: str = "", instance_id: str = "") -> Machine:
        rng = self.world.rng
        machine = Machine(
            name,
            instance_id,
            rack,
            skew_s=rng.uniform(-0.5, 0.5),
            restore_records_per_s=rng.choice((100, 400, 2_000)),
        )
        self.machines[name] = machine
        return machine

    def start_node(self, name: str) -> None:
        """Start a process on a machine, unless one runs there."""
        running = self.nodes.get(name)
        if running is None or not running.is_alive:
            machine = self.machines[name]
            self.nodes[name] = SimulatedNode(self.world, self.kafka, self.checks, machine, self.settings, self.rules)

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.is_alive]

    # Controllers and routers.

    def start_controller(self, *, is_standby: bool = False) -> SimulatedController:
        self._controllers_started += 1
        controller = SimulatedController(
            self.world,
            self.kafka,
            self.checks,
            self.settings,
            f"{'s' if is_standby else 'c'}{self._controllers_started}",
            self._at_step,
            self.nodes,
            is_standby=is_standby,
        )
        self.controllers.append(controller)
        return controller

    def _at_step(self, controller: SimulatedController, step: str) -> None:
        if self.trap is None or self.trap[0] != step:
            return
        (_, what), self.trap = self.trap, None
        self.world.counts[f"controller {what} at {step}"] += 1
        self.world.note(controller.name, "{} at step {}", what, step)
        pause_s = self.world.rng.uniform(0.5, 8.0)
        if what == "crash":
            self.world.loop.call_soon(controller.kill)
            controller.freeze()
            self.world.loop.call_later(pause_s, self.start_controller)
        else:
            # A pause so long that another is started meanwhile: it comes back as a zombie.
            controller.freeze()
            self.world.loop.call_later(pause_s, self.start_controller)
            self.world.loop.call_later(pause_s + self.world.rng.uniform(0.0, 4.0), controller.thaw)

    def living_controllers(self) -> list[SimulatedController]:
        """Return those that act and those that stand by."""
        return [each for each in self.controllers if each.is_alive]

    def _router(self, name: str) -> SimulatedRouter:
        return SimulatedRouter(self.world, self.kafka, self.checks, self.settings, self.rules, name, self.nodes)

    async def restart_router(self, number: int) -> None:
        old = self.routers[number]
        self.routers[number] = self._router(old.name)
        await old.close()

    # The end.

    def unsettled(self) -> str:
        """Return what is not yet as it should be on a quiet fleet; empty if all is."""
        assignment, planner = self.checks.current, self.settings.ownership.planner
        there = {node.instance_id for node in self.running()}
        standbys = min(planner.num_standby_replicas, len(there) - 1)
        actives = dict.fromkeys(sorted(there), 0)
        for task, holders in assignment.tasks.items():
            if set(holders.replicas) - there:
                return f"{task} is on somebody who is not there: {holders}"
            if holders.active is None or holders.warm_ups or len(holders.standbys) != standbys:
                return f"{task} has not the copies asked for: {holders}"
            actives[holders.active] += 1
        if not assignment.tasks or max(actives.values()) - min(actives.values()) > 1:
            return f"actives are not balanced: {actives}"
        acting = [
            each
            for each in self.controllers
            if each.is_alive and each.producer_epoch == self.kafka.producer_epoch and not each.core.damped
        ]
        if not acting:
            return "no controller is at rest"
        if unbuilt := {store.name for store in self.settings.stores} - self.processor.built:
            return f"nothing is committed yet into {sorted(unbuilt)}: no lookup can be answered"
        return next(self._unsettled_nodes(), "")

    def _unsettled_nodes(self) -> Iterator[str]:
        epoch = self.checks.current.epoch
        for node in self.running():
            if node.ownership.epoch != epoch:
                yield f"{node.name} is at epoch {node.ownership.epoch} of {epoch}"
            held = {task: (replica.role, replica.state.value) for task, replica in node.replicas.items()}
            wanted = {task: (role, TaskState.RUNNING) for task, role in node.ownership.wanted.items()}
            if held != wanted:
                yield f"{node.name} holds {held}, wanted is {wanted}"
            behind = [
                task
                for task, replica in node.replicas.items()
                for store in replica.stores.values()
                if isinstance(task, TaskId)
                and store.position != self.kafka.changelogs[store.spec.name, store.partition].end
            ]
            if behind:
                yield f"{node.name} is behind in {behind}"
        for router in self.routers:
            if router.tables.table is None or router.tables.table.epoch != epoch:
                yield f"{router.name} is not at epoch {epoch}"
            elif suspects := [node.name for node in self.running() if node.instance_id in router.health.suspects]:
                yield f"{router.name} suspects {suspects}"
