"""An example that runs: its processor in this process, a node and a router next to it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from processor.application.topology import Topology
from processor.run.processor import Processor
from processor.settings import ProcessorSettings
from statehouse.client import Client
from statehouse.contract.topology import dead_letters_topic
from statehouse.errors import LookupFailure
from tests.integration.processor.support import headers, messages
from tests.support.constants import settings_of
from tests.support.fleet import ServerProcess, Servers
from tests.support.polling import poll_until

SERVED_S = 120.0


class Running:
    """What a test asks of it."""

    def __init__(
        self, application_id: str, bootstrap: str, client: Client, router: str, node: ServerProcess, state_dir: Path
    ) -> None:
        self.application_id, self.bootstrap, self.client = application_id, bootstrap, client
        self.router, self.node, self.state_dir = router, node, state_dir

    def becomes(self, ask: Callable[[], Any], expected: Any, what: str) -> None:
        found: list[Any] = [None]

        def is_right() -> bool:
            try:
                found[0] = ask()
            except LookupFailure as failure:
                found[0] = failure
            return found[0] == expected

        try:
            poll_until(is_right, SERVED_S, what)
        except AssertionError:
            assert found[0] == expected, what
            raise

    def store(self, name: str) -> dict[Any, Any]:
        return {entry.key: entry.value for entry in self.client.scan(name)}

    def reasons(self) -> list[str]:
        found = messages(self.bootstrap, dead_letters_topic(self.application_id))
        return sorted(headers(letter)["reason"] for letter in found)


@contextmanager
def processing(topology: Topology, bootstrap: str, directory: Path, **settings: Any) -> Iterator[None]:
    """Run an application's processor in the Spark session that there is, until the context ends."""
    where = {"bootstrap": bootstrap, "checkpoint_dir": str(directory / "checkpoints")}
    processor = Processor(topology, settings_of(ProcessorSettings, **where, **settings))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            processor.start()
        yield
    finally:
        processor.stop()


@contextmanager
def running_example(
    module: str, bootstrap: str, directory: Path, *, node: Mapping[str, Any] = MappingProxyType({}), **settings: Any
) -> Iterator[Running]:
    """Run an example in the Spark session that there is, until the context ends; `node`: settings of its node."""
    topology = Topology.load(module)
    with Servers(bootstrap, topology.application_id, directory) as servers:
        started = servers.node("n1", **node)
        router = servers.router()
        with processing(topology, bootstrap, directory, **settings), Client(router.target) as client:
            yield Running(topology.application_id, bootstrap, client, router.target, started, directory / "n1")
