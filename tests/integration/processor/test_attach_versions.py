"""Blue and green of a job that knows nothing of this project: two of it, each with `attach`, as two versions."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from statehouse.cli.exits import ExitCode
from statehouse.client import Client
from statehouse.contract.topology import changelog_topic
from statehouse.contract.version_names import FIRST, application_of
from statehouse.errors import LookupFailure
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.test_attach import STORE, USERS, Attach, Job, Records
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import create_topic, topics_of
from tests.support.meanwhile import Meanwhile
from tests.support.polling import poll_until
from tests.support.proxy import PROXY
from tests.support.statehouse import Ran, statehouse
from tests.support.version_readers import Readers

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

SEED: Final = 44
WRITES_S: Final = 0.3
PARTITIONS: Final = {FIRST: 2, "v2": 8}


class Version:
    """A job, `attach` next to it, and the nodes that serve its state."""

    def __init__(self, bootstrap: str, name: str, version: str, topic: str, directory: Path) -> None:
        directory.mkdir()
        self.application_id = application_of(name, version)
        self.job = Job(bootstrap, topic, directory, "changelog", "1 second", per_batch=100_000)
        count = ("--partitions", str(PARTITIONS[version]))
        self.attach = Attach(bootstrap, self.application_id, directory, self.job, *count)
        self.servers = Servers(bootstrap, self.application_id, directory)
        self.nodes: list[ServerProcess] = []

    def start(self) -> None:
        self.job.start()
        poll_until(lambda: self.job.batches, 400, "a batch of the job")
        self.attach.start()
        self.nodes = [self.servers.node(f"{self.application_id[-2:]}-{each}") for each in "ab"]

    def strike(self, chosen: random.Random, check: Callable[[], None]) -> None:
        """Kill a node, the job and `attach`; check while they are gone, and when they are back."""
        node = chosen.choice(self.nodes)
        for killed in (node, self.attach, self.job):
            killed.kill()
        check()
        for killed in (node, self.job, self.attach):
            killed.start()
        check()

    def close(self) -> None:
        self.servers.__exit__()
        for process in (self.job, self.attach):
            if process._process is not None:
                process.kill()


def is_served(client: Client, store: str, records: Records) -> bool:
    expected = {key.decode(): json.loads(each) for key, each in records.states[-1].items()}
    try:
        return {entry.key: entry.value for entry in client.scan(store)} == expected
    except LookupFailure:
        return False


def test_a_job_served_by_attach_changes_under_readers(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    name, topic, chosen = unique_name("shop"), unique_name("clicks"), random.Random(SEED)
    create_topic(kafka.bootstrap, topic)
    records = Records(kafka.bootstrap, topic)
    records.write(200)
    versions = {each: Version(kafka.bootstrap, name, each, topic, tmp_path / each) for each in PARTITIONS}
    blue, green = versions.values()

    def write(stop: threading.Event) -> None:
        while not stop.wait(WRITES_S):
            records.write(5)

    try:
        blue.start()
        router = blue.servers.router(proxy=PROXY)
        where = ("--application-id", name, "--bootstrap", kafka.bootstrap, "--router", router.target)

        def do(*words: str) -> Ran:
            return statehouse(tmp_path, *words, *where, timeout_s=300.0)

        with Client(router.target, direct=False) as client:
            poll_until(lambda: is_served(client, STORE, records), 400, "the state to be served")
            with Readers(router.target, STORE, [f"u{each}" for each in range(USERS)]) as readers:
                with Meanwhile(write, "writes").going_on():
                    readers.wait_for(FIRST)
                    deployed = do("deploy", "v2")
                    assert deployed.code == ExitCode.DONE, deployed.err
                    green.start()
                    for words, serving in ((["promote", "v2"], "v2"), (["rollback"], FIRST), (["promote", "v2"], "v2")):
                        take_over(do, words)
                        readers.wait_for(serving)
                        versions[serving].strike(chosen, partial(readers.wait_for, serving))
                for store in (STORE, f"{STORE}@{FIRST}"):
                    poll_until(partial(is_served, client, store, records), 400, f"all writes in {store}")
                asked = ("compare", STORE, FIRST, "--router", router.target, "-o", "json")
                compared = statehouse(tmp_path, *asked, timeout_s=300.0)
                assert compared.code == ExitCode.DONE, compared.err
                assert json.loads(compared.out)["keys"] == USERS
            assert readers.failed == []
            assert readers.mixed == []
            check_watched(readers.watched)
            blue.job.kill()
            digest = blue.job.digest()
            assert blue.attach.stop() == 0
            retired = do("retire", FIRST, "--yes", "--force")
            assert retired.code == ExitCode.DONE, retired.err
            assert blue.job.digest() == digest, "nothing of the job itself is deleted"
            topics = topics_of(kafka.bootstrap)
            assert changelog_topic(name, STORE) not in topics
            assert changelog_topic(green.application_id, STORE) in topics
            assert is_served(client, STORE, records)
    finally:
        for version in versions.values():
            version.close()


def take_over(do: Callable[..., Ran], words: list[str]) -> None:
    if words[0] == "rollback":  # twice leads back again
        done = do(*words)
        assert done.code == ExitCode.DONE, done.err
    else:  # whose `attach` may have begun just before
        said = [""]

        def is_done() -> bool:
            ran = do(*words)
            said[0] = ran.err
            return ran.code == ExitCode.DONE

        try:
            poll_until(is_done, 400, words[0])
        except AssertionError as error:
            raise AssertionError(f"{error}: {said[0]}") from None


def check_watched(watched: list[tuple[str, bool, Any]]) -> None:
    """A key's count never goes back, and no change of it comes twice."""
    before = 0
    for version, is_current, value in watched:
        assert value["n"] >= before if is_current else value["n"] > before, f"{value} of {version} after {before}"
        before = value["n"]
