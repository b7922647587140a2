"""A store that is brought from another node, as files: whole and right, or not at all; then the log is read."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from query_service.disk.directory import FETCHED_FOLDER, GIVEN_FOLDER
from query_service.states.faults import Fault
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import node_service_pb2, peer_service_pb2, query_service_pb2
from tests.support.fleet import STORE, Fleet, ServerProcess, content
from tests.support.lying_peer import NAME as LIAR
from tests.support.lying_peer import Offer, Send, lying_peer, offer_of, older_peer, wait_told, whole
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.small_disk import fill, small_disk

SLOW_LOG: Final = 10
"""Records a second: so the files of a few records are worth it."""
ENTRIES: Final = {f"key-{number:04}": f"{number:0100}" for number in range(2_000)}


@pytest.fixture
def fleet(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        yield fleet


def node(fleet: Fleet, name: str, **options: Any) -> ServerProcess:
    return fleet.node(name, **{"engine": "go", "assumed_log_records_per_s": SLOW_LOG, **options})


def giver(fleet: Fleet, **options: object) -> ServerProcess:
    """Return n1, which holds the entries."""
    fleet.put({**ENTRIES, "gone": "1"})
    fleet.put({"gone": None})
    first = node(fleet, "n1", **options)
    fleet.assign(TaskAssignment("n1"))
    fleet.wait_running([first])
    wait_told(fleet)
    return first


def joined(fleet: Fleet, *standbys: str, **options: object) -> ServerProcess:
    """Return n2, which has begun with nothing, once it has the store; `standbys`: others that have it."""
    second = node(fleet, "n2", **options)
    fleet.reassign(0, standbys=(*standbys, "n2"))
    fleet.wait_running([second], 60)
    return second


def store_of(node: ServerProcess) -> node_service_pb2.StoreReplica:
    ((store,),) = (task.stores for task in node.node().tasks)
    return store


def folder(fleet: Fleet, name: str) -> Path:
    """Return where a node keeps the store."""
    return fleet.directory / name / fleet.application_id / "0_0" / STORE


def given(fleet: Fleet, name: str = "n1") -> list[Path]:
    """Return the checkpoints that a node has for others."""
    return list((folder(fleet, name) / GIVEN_FOLDER).glob("*"))


def assert_right(fleet: Fleet, node: ServerProcess) -> None:
    """Assert that a node has the store, whatever it came from, and reads on."""
    assert content(node) == ENTRIES
    fleet.put({"key-0000": "new", "late": "1"})
    poll_until(lambda: node.get("late").found, 20, "the node to read on")
    assert content(node) == {**ENTRIES, "key-0000": "new", "late": "1"}
    assert not (folder(fleet, node.name) / FETCHED_FOLDER).exists()


def assert_from_peer(node: ServerProcess, peer: str) -> None:
    """Assert that a node has the files of this peer, which it asked first."""
    store = store_of(node)
    assert (store.restored_by, list(store.passed_over)) == (f"peer {peer}", []), node.log


def assert_from_log(node: ServerProcess, peer: str, fault: Fault, words: str = "") -> None:
    """Assert that a node has read its log, and says why not a peer's files."""
    store = store_of(node)
    assert store.restored_by == "log", node.log
    assert [each for each in store.passed_over if each.startswith(f"{peer}: {fault}: ") and words in each]
    assert "peer passed over" in node.log
    assert fault in node.log


@pytest.mark.feature("store-files-peer")
def test_an_empty_node_gets_its_store_by_files(fleet: Fleet) -> None:
    first = giver(fleet)
    second = joined(fleet, metrics_port=(port := free_port()))
    assert_from_peer(second, "n1")
    assert store_of(second).restored_records == 0, "the files had all of the log"
    found = scrape(port)
    assert found.value("statehouse_node_fetched_bytes_total", store=STORE) > sum(map(len, ENTRIES.values())) / 10
    assert found.value("statehouse_node_opened_stores_total", store=STORE, source="peer") == 1
    assert_right(fleet, second)
    count = query_service_pb2.CountRequest(store=STORE, partition=0, exact=False)
    assert second.call(second.query.Count, count).count == len(ENTRIES) + 1

    # It is the node's own from now on.
    assert second.stop(signal.SIGINT) == 0
    second.start()
    fleet.wait_running([second])
    assert store_of(second).restored_by == "disk"
    assert content(second) == {**ENTRIES, "key-0000": "new", "late": "1"}

    # Given checkpoints go with a restart.
    assert given(fleet)
    assert first.stop(signal.SIGINT) == 0
    first.start()
    fleet.wait_running([first])
    assert not given(fleet)
    assert content(first) == content(second)


def other_topic(offer: peer_service_pb2.OfferStoreResponse) -> None:
    checkpoint = json.loads(offer.manifest.checkpoint)
    offer.manifest.checkpoint = json.dumps({**checkpoint, "topic_id": "AAAAAAAAAAAAAAAAAAAAAA"}).encode()


def other_layout(offer: peer_service_pb2.OfferStoreResponse) -> None:
    checkpoint = json.loads(offer.manifest.checkpoint)
    offer.manifest.checkpoint = json.dumps({**checkpoint, "layout": "window/60000"}).encode()


def ahead_of_the_log(offer: peer_service_pb2.OfferStoreResponse) -> None:
    checkpoint = json.loads(offer.manifest.checkpoint)
    offer.manifest.checkpoint = json.dumps({**checkpoint, "position": 10**9}).encode()


def long_ago(offer: peer_service_pb2.OfferStoreResponse) -> None:
    offer.now_ms += 7 * 24 * 3_600_000


def other_engine(offer: peer_service_pb2.OfferStoreResponse) -> None:
    offer.manifest.engine = "pebble/1000"


def other_format(offer: peer_service_pb2.OfferStoreResponse) -> None:
    checkpoint = json.loads(offer.manifest.checkpoint)
    offer.manifest.checkpoint = json.dumps({**checkpoint, "format_version": 1}).encode()


def way_out(offer: peer_service_pb2.OfferStoreResponse) -> None:
    offer.manifest.files[0].name = "../../../../escaped"


def flipped(part: bytes) -> Iterator[bytes]:
    yield part[:-1] + bytes([part[-1] ^ 1]) if len(part) > 1_000 else part


def half(part: bytes) -> Iterator[bytes]:
    yield part[: len(part) // 2]


@pytest.mark.parametrize(
    ("offer", "send", "fault"),
    [
        (other_topic, whole, Fault.TOPIC_RECREATED),
        (other_layout, whole, Fault.UNKNOWN_FORMAT),
        (other_format, whole, Fault.UNKNOWN_FORMAT),
        (other_engine, whole, Fault.UNKNOWN_FORMAT),
        (ahead_of_the_log, whole, Fault.LOG_TRUNCATED),
        (long_ago, whole, Fault.CHECKPOINT_TOO_OLD),
        (way_out, whole, Fault.CORRUPT_STORE),
        (lambda _offer: None, flipped, Fault.FILE_DAMAGED),
        (lambda _offer: None, half, Fault.PEER_FAILED),
    ],
    ids=["topic", "layout", "format", "engine", "position", "age", "name", "bit", "half"],
)
def test_what_a_peer_may_not_give_comes_from_the_next_one(fleet: Fleet, offer: Offer, send: Send, fault: Fault) -> None:
    first = giver(fleet)
    with lying_peer(fleet, first, offer, send) as peer:
        second = joined(fleet, LIAR)
        store = store_of(second)
        assert store.restored_by == "peer n1"
        (why,) = store.passed_over
        assert why.startswith(f"{LIAR}: {fault}: ")
        assert bool(peer.reads) == (fault in {Fault.FILE_DAMAGED, Fault.PEER_FAILED})
        assert_right(fleet, second)
    assert not list(fleet.directory.rglob("escaped"))


@pytest.mark.feature("store-files-peer")
def test_a_flipped_bit_on_the_peers_disk_is_no_part_of_the_store(fleet: Fleet) -> None:
    first = giver(fleet)
    offer_of(first)
    (checkpoint,) = given(fleet)
    (table, *_) = sorted(checkpoint.glob("*.sst"), key=lambda each: -each.stat().st_size)
    # It is a link: the node's own file stays as it is.
    shutil.copy(table, copy := table.with_suffix(".copy"))
    damaged = bytearray(copy.read_bytes())
    damaged[len(damaged) // 2] ^= 16
    copy.write_bytes(damaged)
    changed_ns = table.stat().st_mtime_ns
    os.utime(copy, ns=(changed_ns, changed_ns))
    copy.replace(table)
    second = joined(fleet)
    assert_from_peer(second, "n1")
    with pytest.raises(LookupFailure) as failure:
        content(second)
    assert failure.value.reason is Reason.TASK_FAILED, "it was sent as it is there, and the first read finds it"
    fleet.put({"next": "1"})
    poll_until(lambda: has(second, "next"), 30, "the store to be restored")
    assert_from_log(second, "n1", Fault.CORRUPT_STORE, "damaged before")
    fleet.put({"next": None})
    poll_until(lambda: not has(second, "next"), 20, "the node to read on")
    assert_right(fleet, second)


def has(node: ServerProcess, key: str) -> bool:
    """Return whether a node has a key; False while its task is restored."""
    try:
        return node.get(key).found
    except LookupFailure:
        return False


@pytest.mark.feature("store-files-peer")
def test_a_peer_that_is_killed_half_way_is_followed_by_the_log(fleet: Fleet) -> None:
    first = giver(fleet, peer_bytes_per_s=20_000)
    second = node(fleet, "n2")
    fleet.reassign(0, standbys=("n2",))
    parts = folder(fleet, "n2") / FETCHED_FOLDER
    poll_until(lambda: list(parts.rglob("*.part")), 30, "a part of a file")
    first.kill()
    fleet.wait_running([second], 60)
    assert_from_log(second, "n1", Fault.PEER_FAILED)
    assert_right(fleet, second)


@pytest.mark.feature("store-files-peer")
def test_half_of_the_files_are_fetched_on_after_a_restart(fleet: Fleet) -> None:
    giver(fleet, peer_bytes_per_s=50_000)
    second = node(fleet, "n2")
    fleet.reassign(0, standbys=("n2",))
    parts = folder(fleet, "n2") / FETCHED_FOLDER
    poll_until(lambda: sum(each.stat().st_size for each in parts.glob("*/*")) > 20_000, 30, "a part of the files")
    second.kill()
    second.start()
    fleet.wait_running([second], 60)
    assert_from_peer(second, "n1")
    (there,) = [bytes_there(line) for line in second.log.splitlines() if "files are fetched" in line][1:]
    assert there > 10_000
    assert_right(fleet, second)


def bytes_there(line: str) -> int:
    """Return how many bytes were there, by a log line."""
    found = re.search(r"there_bytes\W+(\d+)", line)
    assert found is not None, line
    return int(found[1])


def half_of_much(part: bytes) -> Iterator[bytes]:
    yield part[: len(part) // 2] if len(part) > 1_000 else part


def test_a_peer_that_fails_half_way_is_asked_again_for_the_rest(fleet: Fleet) -> None:
    first = giver(fleet)
    with lying_peer(fleet, first, send=half_of_much):
        second = joined(fleet, LIAR)
    assert_from_peer(second, LIAR)
    assert "a peer is asked again" in second.log
    assert_right(fleet, second)


def test_a_slow_peer_is_left_for_the_log(fleet: Fleet) -> None:
    giver(fleet, peer_bytes_per_s=1_000)
    second = joined(fleet, assumed_log_records_per_s=500)
    assert_from_log(second, "n1", Fault.PEER_SLOW)
    assert_right(fleet, second)


@pytest.mark.feature("store-files-peer")
def test_a_full_disk_is_left_for_the_log(fleet: Fleet) -> None:
    giver(fleet)
    with small_disk(fleet.directory / "n2", 32):
        second = joined(fleet)
        assert_from_log(second, "n1", Fault.DISK_FULL)
        assert_right(fleet, second)
        second.kill()


@pytest.mark.feature("store-files-peer")
def test_a_disk_that_is_full_half_way_is_left_for_the_log(fleet: Fleet) -> None:
    giver(fleet, peer_bytes_per_s=20_000)
    with small_disk(fleet.directory / "n2", 128):
        second = node(fleet, "n2")
        fleet.reassign(0, standbys=("n2",))
        fetched = folder(fleet, "n2") / FETCHED_FOLDER
        poll_until(lambda: list(fetched.rglob("*.part")), 30, "a part of a file")
        fill(fetched)  # what was fetched is removed, and this with it
        fleet.wait_running([second], 60)
        assert_from_log(second, "n1", Fault.DISK_FULL)
        assert_right(fleet, second)
        second.kill()


def test_how_far_files_are_is_shown_as_for_any_restore(fleet: Fleet) -> None:
    giver(fleet, peer_bytes_per_s=20_000)
    second = node(fleet, "n2", metrics_port=(port := free_port()))
    fleet.reassign(0, standbys=("n2",))

    def under_way() -> node_service_pb2.StoreTransfer | None:
        found = [each for task in second.node().tasks for each in task.transfers]
        return found[0] if found and 0 < found[0].done_bytes < found[0].size_bytes else None

    shown = poll_until(under_way, 30, "a part of the files")
    assert (shown.store, shown.partition, shown.peer) == (STORE, 0, "n1")
    missing = scrape(port).value("statehouse_node_restore_remaining_bytes", store=STORE, role="STANDBY")
    assert 0 < missing < shown.size_bytes
    fleet.wait_running([second], 60)
    assert_from_peer(second, "n1")
    assert not [each for task in second.node().tasks for each in task.transfers]
    assert scrape(port).value("statehouse_node_restore_remaining_bytes", store=STORE, role="STANDBY") == 0


def test_a_peer_of_an_older_version_is_passed_over(fleet: Fleet) -> None:
    giver(fleet)
    with older_peer(fleet):
        second = joined(fleet, LIAR)
    store = store_of(second)
    assert store.restored_by == "peer n1"
    assert list(store.passed_over) == [f"{LIAR}: {Fault.PEER_FAILED}: its version gives no stores to other nodes"]
    assert_right(fleet, second)


@pytest.mark.parametrize("options", [{"engine": "python"}, {"proxy": "none", "engine": "python"}])
def test_a_node_without_the_program_gives_nothing(fleet: Fleet, options: dict[str, Any]) -> None:
    giver(fleet, **options)
    second = joined(fleet)
    assert_from_log(second, "n1", Fault.PEER_FAILED, "INVALID_REQUEST")
    assert_right(fleet, second)


def test_what_the_log_gives_sooner_is_read_from_it(fleet: Fleet) -> None:
    first = giver(fleet)
    second = joined(fleet, assumed_log_records_per_s=500_000)
    assert (store_of(second).restored_by, list(store_of(second).passed_over)) == ("log", [])
    assert not given(fleet)
    assert_right(fleet, second)
    assert content(first) == content(second)
