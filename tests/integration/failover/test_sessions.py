"""Sessions through a router on real nodes: what a reader sees never goes back, whichever node dies, freezes or lags."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from processor.reports.commits import CommitsPublisher, StoreChangelog
from statehouse.client import Answer, Client, Freshness, InputRecord, Lookup, Token
from statehouse.contract.assignment import TaskAssignment
from statehouse.errors import LookupFailure, Reason
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import STORE, Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.ownership import answered
from tests.support.polling import poll_until
from tests.support.shared import shared_fleet

LONG_S = 30.0


class Pair:
    """An active and a standby of one partition, and a client of their router."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.active, self.standby = fleet.node("n1"), fleet.node("n2")
        fleet.assign(TaskAssignment("n1", ("n2",)))
        fleet.wait_running([self.active, self.standby])
        self._metrics_port = free_port()
        self.router: ServerProcess = fleet.router(metrics_port=self._metrics_port)
        self.client = Client(self.router.target, timeout=LONG_S)
        self.write("0")
        poll_until(lambda: answered(self.router, "k"), 20, "the router")

    def write(self, value: str) -> None:
        """Write the one record anew, and wait until both nodes have it."""
        self.fleet.put({"k": value})
        for node in (self.active, self.standby):
            poll_until(lambda node=node: node.get("k").value.text == value, 20, "the record")

    def token_of_end(self, more: int = 0) -> Token:
        """Return a token of the log's end, and `more` records."""
        position = self.client.get(STORE, "k").position
        assert position is not None
        return Token({(STORE, 0): position + more})

    def attempts(self, reason: str) -> float:
        return scrape(self._metrics_port).value("statehouse_router_attempts_total", reason=reason)


@pytest.fixture
def own_pair(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path) -> Iterator[Pair]:
    """For tests after which a node is not as it was."""
    with Fleet(kafka.bootstrap, unique_name("app"), tmp_path, partitions=1) as fleet:
        pair = Pair(fleet)
        with pair.client:
            yield pair


@pytest.fixture(scope="module")
def shared_pair(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "sessions", partitions=1) as fleet:
        pair = Pair(fleet)
        with pair.client:
            yield pair


@pytest.fixture
def pair(shared_pair: Pair) -> Pair:
    """Begin with the value 0, whatever other tests have left."""
    shared_pair.write("as good as nothing")
    shared_pair.write("0")
    return shared_pair


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_standby_that_lags_does_not_take_a_session_back(own_pair: Pair) -> None:
    session = own_pair.client.session()
    own_pair.standby.freeze()
    own_pair.fleet.put({"k": "1"})
    poll_until(lambda: session.get(STORE, "k").value == "1", 20, "the active to have it")
    seen = session.get(STORE, "k").position
    own_pair.active.kill()
    own_pair.standby.thaw()
    answer = session.get(STORE, "k")
    assert (answer.value, answer.host.instance_id) == ("1", "n2")
    assert answer.position is not None
    assert seen is not None
    assert answer.position >= seen


@pytest.mark.feature("least-position-read")
def test_a_session_never_goes_back_while_its_active_freezes_and_comes_back(own_pair: Pair) -> None:
    stop = threading.Event()

    def write() -> None:
        for number in range(1, 10_000):
            if stop.wait(0.1):
                return
            own_pair.fleet.put({"k": str(number)})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        session = own_pair.client.session()
        answers: list[Answer] = []

        def read_until(role: str, count: int) -> None:
            """Read until answers of this role have come."""
            wanted = count + sum(each.role == role for each in answers)

            def read() -> bool:
                answers.append(session.get(STORE, "k"))
                return sum(each.role == role for each in answers) >= wanted

            poll_until(read, LONG_S, f"{count} answers as {role}")

        for _ in range(2):
            read_until("ACTIVE", 10)
            own_pair.active.freeze()
            read_until("STANDBY", 10)
            own_pair.active.thaw()
    finally:
        stop.set()
        writer.join()
    positions = [each.position or 0 for each in answers]
    assert positions == sorted(positions)
    values = [int(str(each.value)) for each in answers]
    assert values == sorted(values)


@pytest.mark.feature("commits-topic-input")
@pytest.mark.feature("least-input-record")
def test_a_producer_reads_what_became_of_its_record(pair: Pair, caller: ThreadPoolExecutor) -> None:
    fleet = pair.fleet
    changelog = StoreChangelog(STORE, fleet.changelog, 1)
    commits = CommitsPublisher(fleet.bootstrap, fleet.application_id, STORE, [changelog])
    commits.start()
    record = InputRecord("clicks", 0, 7)

    def produced_and_read() -> Answer:
        token = pair.client.await_input(STORE, record)
        return pair.client.get(STORE, "k", at_least=token)

    commits.publish("query", 0, {("clicks", 0): 7})
    read = caller.submit(produced_and_read)
    with pytest.raises(LookupFailure) as caught:
        pair.client.await_input(STORE, record, timeout=2.0)
    assert caught.value.reason is Reason.INPUT_NOT_PROCESSED
    assert not read.done()
    fleet.put({"k": "7"})
    commits.publish("query", 1, {("clicks", 0): 8})
    assert read.result(LONG_S).value == "7"


def test_a_read_waits_through_the_router_and_no_node_is_taken_for_slow(pair: Pair, caller: ThreadPoolExecutor) -> None:
    token, before = pair.token_of_end(more=1), pair.attempts("POSITION_NOT_REACHED")
    timed_out = pair.attempts("ATTEMPT_TIMED_OUT")
    read = caller.submit(pair.client.get, STORE, "k", at_least=token)
    # Both nodes have been asked, and one of them again.
    poll_until(
        lambda: pair.attempts("POSITION_NOT_REACHED") >= before + 3, 20, "the nodes to say that they are not there yet"
    )
    pair.fleet.put({"k": "1"})
    assert read.result(LONG_S).value == "1"
    assert "asked last" not in pair.router.log
    assert pair.attempts("ATTEMPT_TIMED_OUT") == timed_out


def test_without_the_position_the_failure_says_where_each_replica_is(pair: Pair) -> None:
    token = pair.token_of_end(more=1)
    with pytest.raises(LookupFailure) as caught:
        pair.client.get(STORE, "k", at_least=token, timeout=4.0)
    assert caught.value.reason is Reason.POSITION_NOT_REACHED
    wanted = token.position(STORE, 0)
    assert (caught.value.metadata["position"], caught.value.metadata["wanted"]) == (str(wanted - 1), str(wanted))
    assert {each.host.instance_id for each in caught.value.candidates} == {"n1", "n2"}
    with pytest.raises(LookupFailure) as caught:
        list(pair.client.scan(STORE, at_least=token, timeout=4.0))
    assert caught.value.reason is Reason.POSITION_NOT_REACHED


def test_a_key_of_a_batch_that_has_to_wait_is_asked_for_alone(pair: Pair, caller: ThreadPoolExecutor) -> None:
    future, before = Freshness(at_least=pair.token_of_end(more=1)), pair.attempts("POSITION_NOT_REACHED")
    batch = caller.submit(pair.client.batch_get, [Lookup(STORE, "k"), Lookup(STORE, "k", future)])
    poll_until(lambda: pair.attempts("POSITION_NOT_REACHED") > before, 20, "the entry to wait alone")
    pair.fleet.put({"k": "1"})
    now, later = batch.result(LONG_S)
    assert isinstance(now, Answer)
    assert isinstance(later, Answer)
    assert (now.value, later.value) == ("0", "1")


def test_a_scan_waits_for_each_partition_that_the_token_names(pair: Pair, caller: ThreadPoolExecutor) -> None:
    token = pair.token_of_end(more=1)  # before the record is written, not in the other thread
    scan = caller.submit(lambda: list(pair.client.scan(STORE, at_least=token, timeout=LONG_S)))
    pair.fleet.put({"k": "1"})
    assert [each.value for each in scan.result(LONG_S)] == ["1"]
