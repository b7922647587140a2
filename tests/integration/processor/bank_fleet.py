"""What serves the bank that Spark keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pyspark.sql import SparkSession

from statehouse.client import Client, Task
from statehouse.contract.membership import TaskState
from statehouse.errors import LookupFailure
from statehouse.local.ports import LOOPBACK, free_port
from tests.integration.processor.bank import PARTITIONS, application_id
from tests.support.bank import ACCOUNTS, NUMBER, Seen
from tests.support.bank_readers import ALL_ACCOUNTS, is_web_up
from tests.support.fleet import ServerProcess, Servers
from tests.support.polling import poll_until

OPENED_S: Final = 180.0
MENDED_S: Final = 180.0


class BankFleet:
    """Three nodes and two routers, with their web processes; further nodes come and go."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._servers = Servers(bootstrap, application_id, directory)
        ports = [free_port(), free_port()]
        self.nodes = [self._servers.node(name) for name in ("n1", "n2", "n3")]
        self.routers = [self._servers.router(f"r{number}", http_port=port) for number, port in enumerate(ports)]
        self.targets = ",".join(router.target for router in self.routers)
        self.addresses = [f"http://{LOOPBACK}:{port}" for port in ports]
        self.client = Client(self.targets, direct=False, timeout=10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._servers.__exit__()

    def add_node(self, name: str) -> ServerProcess:
        return self._servers.node(name)

    def wait_opened(self) -> None:
        """Wait until all is there and shows the first batch."""
        poll_until(self.is_settled, OPENED_S, "all nodes to have their tasks")
        poll_until(self._is_opened, OPENED_S, "the accounts to be opened")
        poll_until(lambda: all(map(is_web_up, self.addresses)), OPENED_S, "the web processes")

    def is_settled(self) -> bool:
        """Whether each task has an active and a standby, nobody but the three nodes has any, and all of them run."""
        tasks = self._tasks()
        held: dict[str, set[str]] = {node.name: set() for node in self.nodes}
        for task in tasks:
            for name in (task.active, *task.standbys, *task.warm_ups):
                held.setdefault(name or "nobody", set()).add(task.task)
        return (
            len(tasks) == PARTITIONS
            and all(len(task.standbys) == 1 and not task.warm_ups for task in tasks)
            and held.keys() == {node.name for node in self.nodes}
            and all(held[node.name] and held[node.name] == _running(node) for node in self.nodes)
        )

    def is_active(self, node: ServerProcess) -> bool:
        return any(task.active == node.name for task in self._tasks())

    def _tasks(self) -> tuple[Task, ...]:
        """Return the tasks that routers tell of; none, while they tell nothing."""
        try:
            return self.client.fleet().tasks
        except LookupFailure:
            return ()

    def _is_opened(self) -> bool:
        try:
            with self.client.moment() as moment:
                return len(list(moment.scan(ACCOUNTS))) == NUMBER
        except LookupFailure:
            return False

    def frame(self, spark: SparkSession) -> Seen:
        """Read all accounts as a DataFrame, which is of one moment."""
        frame = spark.read.format("statehouse").option("router", self.targets).option("store", ACCOUNTS).load()
        return Seen({ACCOUNTS: {row.key: row.value for row in frame.collect()}}, ALL_ACCOUNTS)


def _running(node: ServerProcess) -> set[str]:
    return {task.task for task in node.node().tasks if task.state == TaskState.RUNNING}
