"""Blue and green: real nodes of two versions, routers that switch, and readers who notice nothing but the version.

At every step a node or a router is killed and comes back.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from statehouse.client import Answer, AsyncClient, Client, Lookup
from statehouse.contract.assignment import TaskAssignment
from statehouse.contract.version_names import FIRST, application_of
from statehouse.contract.versions import VersionRefused
from statehouse.errors import LookupFailure, Reason
from statehouse.kafka.version_record import change_versions, read_versions
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.polling import poll_until, poll_until_async
from tests.support.proxy import PROXY
from tests.support.statehouse import Ran, statehouse

KEYS = [f"k{number:03}" for number in range(100)]
A_SECOND = 60
A_SECOND_AT_FULL_SIZE = 300
SEED = 44
KEPT_MS = 2**52


@dataclass
class Reader:
    """Reads keys, batches and whole stores at a steady pace, and says whose answers it had: the versions."""

    client: AsyncClient
    a_second: float
    failed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    is_over: bool = False

    async def run(self) -> None:
        pace = asyncio.get_running_loop().time()
        pending: set[asyncio.Task[None]] = set()
        for number in itertools.count():
            if self.is_over:
                break
            pace += 1 / self.a_second
            await asyncio.sleep(max(0.0, pace - asyncio.get_running_loop().time()))
            task = asyncio.create_task(self._read(number))
            pending.add(task)
            task.add_done_callback(pending.discard)
        if pending:
            await asyncio.wait(pending)

    async def _read(self, number: int) -> None:
        self.reads += 1
        try:
            if number % 30 == 0:
                await self._batch()
            elif number % 100 == 1:
                await self._walk()
            else:
                self._note("get", [await self.client.get(STORE, KEYS[number % len(KEYS)], timeout=20.0)])
        except LookupFailure as failure:
            self.failed.append(f"{failure.reason.name}: {failure.message}")

    async def _batch(self) -> None:
        outcomes = await self.client.batch_get([Lookup(STORE, key) for key in KEYS[:20]], timeout=20.0)
        self.failed += [f"batch: {each}" for each in outcomes if isinstance(each, LookupFailure)]
        self._note("batch", [each for each in outcomes if isinstance(each, Answer)])

    async def _walk(self) -> None:
        values: list[str] = []
        try:
            values += [str(entry.value) async for entry in self.client.scan(STORE, page_size=30, timeout=20.0)]
        except LookupFailure as failure:
            if failure.reason is not Reason.VERSION_CHANGED:
                raise
            return
        found = {value.partition(":")[0] for value in values}
        if len(found) != 1 or len(values) != len(KEYS):
            self.mixed.append(f"a walk has {len(values)} values of {sorted(found)}")

    def _note(self, what: str, answers: list[Answer]) -> None:
        versions = {answer.version for answer in answers}
        values = {str(answer.value).partition(":")[0] for answer in answers}
        if len(versions) != 1 or values != versions:
            self.mixed.append(f"{what}: of {sorted(versions)}, values of {sorted(values)}")
        for each in versions:
            self.answers[each] = self.answers.get(each, 0) + 1


class BlueGreen:
    """Two versions of an application, with real nodes, and two routers."""

    def __init__(self, bootstrap: str, name: str, directory: Path) -> None:
        self.name, self.bootstrap, self.directory = name, bootstrap, directory
        self.fleets: dict[str, Fleet] = {}
        for version, count in ((FIRST, 4), ("v2", 16)):
            (directory / version).mkdir()
            application = application_of(name, version)
            self.fleets[version] = Fleet(bootstrap, application, directory / version, partitions=count)
        self.nodes: dict[str, list[ServerProcess]] = {}
        self.routers = [self._router(f"router-{number}") for number in (1, 2)]

    def _router(self, name: str) -> ServerProcess:
        return self.fleets[FIRST].router(name, proxy=PROXY)

    @property
    def target(self) -> str:
        return ",".join(router.target for router in self.routers)

    def start(self, version: str) -> None:
        """Start a version's nodes, with its values."""
        fleet = self.fleets[version]
        names = [f"{version}-a", f"{version}-b"]
        self.nodes[version] = [fleet.node(name) for name in names]
        fleet.put({key: f"{version}:{key}" for key in KEYS})
        fleet.assign(*[TaskAssignment(names[each % 2], (names[1 - each % 2],)) for each in range(fleet.partitions)])
        fleet.wait_running(self.nodes[version])

    def command(self, *words: str) -> Ran:
        """Run a command that changes versions."""
        where = ("--application-id", self.name, "--bootstrap", self.bootstrap, "--router", self.target)
        return statehouse(self.directory, *words, *where)

    def restart(self, process: ServerProcess) -> None:
        """Kill a process; it comes back."""
        process.kill()
        process.start()

    def close(self) -> None:
        for fleet in self.fleets.values():
            fleet.__exit__()


@pytest.fixture
def blue_green(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[BlueGreen]:
    started = BlueGreen(kafka.bootstrap, unique_name("board"), tmp_path)
    try:
        started.start(FIRST)
        poll_until(lambda: all(is_answering(router.target) for router in started.routers), 30, "the routers")
        yield started
    finally:
        started.close()


def is_answering(target: str) -> bool:
    with Client(target, direct=False, timeout=1.0) as client:
        try:
            return client.get(STORE, KEYS[0]).found
        except LookupFailure:
            return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("a_second", [A_SECOND, pytest.param(A_SECOND_AT_FULL_SIZE, marks=pytest.mark.long)])
async def test_a_promotion_and_a_rollback_fail_no_read_and_mix_no_answer(blue_green: BlueGreen, a_second: int) -> None:
    chosen = random.Random(SEED)
    async with AsyncClient(blue_green.target, direct=False) as routed, AsyncClient(blue_green.target) as direct:
        readers = [Reader(routed, a_second / 2), Reader(direct, a_second / 2)]
        running = [asyncio.create_task(each.run()) for each in readers]

        async def has_answers(version: str) -> None:
            least = [each.answers.get(version, 0) + 50 for each in readers]
            await poll_until_async(
                lambda: all(each.answers.get(version, 0) >= n for each, n in zip(readers, least, strict=True)),
                60,
                f"answers of {version}",
            )

        async def do(*words: str) -> Ran:
            return await asyncio.to_thread(blue_green.command, *words)

        async def restart(process: ServerProcess) -> None:
            await asyncio.to_thread(blue_green.restart, process)

        await has_answers(FIRST)
        deployed = await do("deploy", "v2", "--partitions", "16")
        assert deployed.code == 0, deployed.err
        early = await do("promote", "v2")
        assert early.code == 1, early.out
        assert "not ready" in early.err or "ROUTING_NOT_READY" in early.err
        await asyncio.to_thread(blue_green.start, "v2")
        await restart(chosen.choice(blue_green.nodes[FIRST]))
        await has_answers(FIRST)
        assert all("v2" not in each.answers for each in readers), "nobody reads what isn't promoted"
        loop = asyncio.get_running_loop()
        for turn, version in enumerate(("v2", FIRST, "v2")):
            if turn == 1:
                began = loop.time()
                done = await do("rollback")
                assert done.code == 0, done.err
                await has_answers(FIRST)
                assert loop.time() - began < 15.0  # a program's start, and a hundred answers for each reader
            else:
                await poll_until_async(lambda: is_promoted(blue_green), 60, "the promotion")
                await has_answers("v2")
            assert read_versions(blue_green.bootstrap, blue_green.name, 10.0).serving == version
            await restart(chosen.choice(blue_green.nodes[version]))
            await has_answers(version)
            await restart(chosen.choice(blue_green.routers))
            await has_answers(version)
        for each in readers:
            each.is_over = True
        await asyncio.gather(*running)
    assert [each.failed for each in readers] == [[], []]
    assert [each.mixed for each in readers] == [[], []]


def is_promoted(blue_green: BlueGreen) -> bool:
    done = blue_green.command("promote", "v2", "--keep", "1h")
    assert done.code == 0 or "is not ready" in done.err or "UNREACHABLE" in done.err, done.err
    return done.code == 0


def test_only_one_of_two_commands_changes_the_versions(kafka: EmbeddedKafka, blue_green: BlueGreen) -> None:
    """A command that has read the record before another one wrote must not write."""
    name = blue_green.name
    change_versions(kafka.bootstrap, name, lambda known: known.deployed("v2"), 20.0)

    def overtaken(known: object) -> object:
        change_versions(kafka.bootstrap, name, lambda newest: newest.deployed("v3"), 20.0)
        return known.promoted("v2", KEPT_MS)  # type: ignore[attr-defined]

    with pytest.raises(VersionRefused, match="another command"):
        change_versions(kafka.bootstrap, name, overtaken, 20.0)  # type: ignore[arg-type]
    known = read_versions(kafka.bootstrap, name, 20.0)
    assert (known.serving, known.all) == (FIRST, (FIRST, "v2", "v3"))
