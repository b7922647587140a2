"""What goes wrong with the bank that Spark keeps, and how it is mended."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.integration.processor.bank_fleet import MENDED_S, OPENED_S, BankFleet
from tests.integration.processor.support import ProcessorProcess
from tests.support.bank_readers import is_web_up
from tests.support.fleet import ServerProcess
from tests.support.polling import poll_until
from tests.support.spark_cluster import SparkCluster


@dataclass(frozen=True, slots=True)
class Fault:
    """What strikes, and what mends it; both are given the number of the round."""

    strike: Callable[[int], None]
    mend: Callable[[int], None]


def faults_of_fleet(fleet: BankFleet, frozen_s: float) -> dict[str, Fault]:
    """Return what goes wrong with what answers. `frozen_s`: how long a frozen node stands still."""

    def node(number: int) -> ServerProcess:
        return fleet.nodes[number % len(fleet.nodes)]

    def router(number: int) -> ServerProcess:
        return fleet.routers[number % len(fleet.routers)]

    def start_node(number: int) -> None:
        node(number).start()

    def start_router(number: int) -> None:
        router(number).start()
        poll_until(lambda: is_web_up(fleet.addresses[number % len(fleet.routers)]), MENDED_S, "its web process")

    frozen_at = 0.0

    def freeze(number: int) -> None:
        nonlocal frozen_at
        # Not the one that was killed in this round.
        node(number + 1).freeze()
        frozen_at = time.monotonic()

    def thaw(number: int) -> None:
        poll_until(lambda: time.monotonic() - frozen_at > frozen_s, frozen_s + 1, "its time to be over")
        node(number + 1).thaw()

    guests: list[ServerProcess] = []

    def add(number: int) -> None:
        guests.append(fleet.add_node(f"guest-{number}"))
        poll_until(lambda: fleet.is_active(guests[-1]), MENDED_S, "a new node to become active of a task")

    def remove(_number: int) -> None:
        guests[-1].stop(signal.SIGTERM, MENDED_S)

    return {
        "node killed": Fault(lambda number: node(number).kill(), start_node),
        "router killed": Fault(lambda number: router(number).kill(), start_router),
        "node frozen": Fault(freeze, thaw),
        "tasks moved": Fault(add, remove),
    }


def faults_of_spark(driver: ProcessorProcess, cluster: SparkCluster) -> dict[str, Fault]:
    """Return what goes wrong with what computes."""
    rng = random.Random(7)

    def start_driver(_number: int) -> None:
        driver.start()
        driver.wait_for("batch committed", 1, OPENED_S)

    def kill_executor(_number: int) -> None:
        rng.choice(cluster.wait_for_executors(2, MENDED_S)).send(signal.SIGKILL)

    def wait_for_executor(_number: int) -> None:
        cluster.wait_for_executors(2, MENDED_S)
        # A driver that has ended all the same is a supervisor's affair.
        if not driver.is_running:
            start_driver(0)

    return {
        "driver killed": Fault(lambda _number: driver.kill(), start_driver),
        "executor killed": Fault(kill_executor, wait_for_executor),
    }
