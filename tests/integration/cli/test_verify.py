"""`statehouse verify` of a real fleet: what is planted in a replica is found, named and restored; nothing else is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from statehouse.contract.partitioning import partition_for
from statehouse.local.kafka import EmbeddedKafka
from tests.support.compared_store import ComparedStore, named
from tests.support.fleet import Fleet
from tests.support.planted import Planted

PARTITIONS: Final = 2
COUNT: Final = 3_000


@pytest.fixture(params=["go", "python"])
def written(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[ComparedStore]:
    with Fleet(kafka.bootstrap, unique_name("verify"), tmp_path, partitions=PARTITIONS) as fleet:
        store = ComparedStore(fleet, request.param, COUNT)
        store.load()
        yield store
        store.close()


PLANTED: Final = (
    Planted(b"entry-0000007", b"another", 1_000),
    Planted(b"entry-0000008", None),
    Planted(b"never-written", b"extra", 1_000),
)


@pytest.mark.feature("replicas-compared")
def test_what_differs_is_named_and_restored(written: ComparedStore) -> None:
    code, document, told = written.verify()
    assert (code, document["differences"]) == (0, []), told
    assert {each["result"] for each in document["copies"]} == {"equal"}
    assert [each["copy"] for each in document["copies"]] == ["log", "node-a", "node-b", "log", "node-b", "node-a"]
    assert sum(each["entries"] for each in document["copies"] if each["copy"] == "log") == COUNT

    written.plant("node-b", *PLANTED)
    wrong = {
        ("node-b", "entry-0000007", "wrong value"),
        ("node-b", "entry-0000008", "missing"),
        ("node-b", "never-written", "extra"),
    }
    code, document, told = written.verify()
    assert (code, named(document)) == (1, wrong), told
    partitions = {each["key"]: each["partition"] for each in document["differences"]}
    assert partitions == {key: partition_for(key.encode(), PARTITIONS) for _, key, _ in wrong}
    code, document, told = written.verify("--no-log")
    assert (code, {each["wrong"] for each in document["differences"]}) == (1, {"differs"}), told
    assert {each["key"] for each in document["differences"]} == {key for _, key, _ in wrong}

    code, document, told = written.verify("--restore")
    assert (code, named(document)) == (0, wrong), told
    assert "node-b restores its replica" in told
    assert "node-a restores" not in told
    assert written.verify()[0] == 0
    assert "fault=differed" in written.nodes["node-b"].log.replace('"fault": "', "fault=").replace("'", "")


@pytest.mark.feature("replicas-compared")
def test_writes_and_a_kill_are_no_difference(written: ComparedStore) -> None:
    with written.work.going_on():
        for _ in range(2):
            code, document, told = written.verify()
            assert (code, document["differences"]) == (0, []), (document, told)
        written.nodes["node-b"].kill()
        code, document, told = written.verify("--patience", "1")
        assert code in {0, 4}, (document, told)
        written.nodes["node-b"].start()
        code, document, told = written.verify()
        assert (code, document["differences"]) == (0, []), (document, told)
