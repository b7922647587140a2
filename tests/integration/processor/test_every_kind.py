"""One application with a store of every kind: what it writes, where, and that a real node answers from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import changelog_topic, updates_topic
from statehouse.errors import LookupFailure
from statehouse.kafka.clients import admin
from statehouse.kafka.topics import topic_settings
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.integration.processor import every_kind
from tests.integration.processor.every_kind import CLICKS, MAX_ENTRIES, PAGES, PRICES, VISITORS, application_id
from tests.integration.processor.support import ProcessorProcess, messages, store_of
from tests.support.fleet import ServerProcess
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(400)

PARTITIONS = 2
BATCH_S = 150.0
# Years ago: event times of a replay. A whole minute.
BEGAN_MS = 1_000_000_020_000
SECOND, MINUTE = 1_000, 60_000
TIMINGS = {"heartbeat-interval-ms": 200, "session-timeout-ms": 2_000}


def feed(bootstrap: str, topic: str, records: list[tuple[str, str, int]]) -> None:
    """Produce (key, value, milliseconds after BEGAN_MS), placed by key."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for key, value, after_ms in records:
        partition = partition_for(key.encode(), PARTITIONS)
        producer.produce(topic, key=key, value=value, partition=partition, timestamp=BEGAN_MS + after_ms)
    assert producer.flush(30.0) == 0


CLICKED = [
    ("ann", "home", 0),
    ("bob", "home", 5 * SECOND),
    ("ann", "cart", 20 * SECOND),
    ("ann", "home", 70 * SECOND),
    ("bob", "help", 100 * SECOND),
]
LATER = 10 * MINUTE


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as broker:
        for topic in (CLICKS, VISITORS):
            create_topic(broker.bootstrap, topic, PARTITIONS, {"retention.ms": "-1"})
        create_topic(broker.bootstrap, PAGES, 1, {"cleanup.policy": "compact"})
        create_topic(broker.bootstrap, PRICES, PARTITIONS, {"cleanup.policy": "compact", "retention.ms": "-1"})
        feed(broker.bootstrap, PRICES, [("home", "1", 0), ("cart", "2", 0)])
        produce(broker.bootstrap, PAGES, [(b"home", b"Welcome"), (b"cart", b"Your cart")])
        feed(broker.bootstrap, CLICKS, CLICKED)
        yield broker


@pytest.fixture(scope="module")
def processor(broker: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessorProcess]:
    # Small batches, so that entries are displaced by later batches, too.
    options = ["--max-offsets", "400", "--heartbeat-interval-ms", "200", "--session-timeout-ms", "2000"]
    processor = ProcessorProcess(every_kind.__name__, broker.bootstrap, tmp_path_factory.mktemp("processor"), *options)
    processor.start()
    processor.wait_for("processor started")
    yield processor
    if processor.is_running:
        assert processor.stop() == 0, processor.log_tail()


@pytest.fixture(scope="module")
def new_node(
    broker: EmbeddedKafka, processor: ProcessorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], ServerProcess]]:
    started = []

    def start(name: str) -> ServerProcess:
        port, directory = free_port(), tmp_path_factory.mktemp(name)
        options = {"instance-id": name, "application-id": application_id, "bootstrap": broker.bootstrap, "port": port}
        node = ServerProcess(
            name, "query_service", {**options, "state-dir": directory / "state", **TIMINGS}, port, directory
        )
        started.append(node.start())
        return node

    yield start
    for node in started:
        node.close()


@pytest.fixture(scope="module")
def router(
    broker: EmbeddedKafka, new_node: Callable[[str], ServerProcess], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A router in front of one node."""
    new_node("n1")
    port = free_port()
    options = {"application-id": application_id, "bootstrap": broker.bootstrap, "port": port}
    router = ServerProcess("router", "router", options, port, tmp_path_factory.mktemp("router"))
    yield router.start()
    router.close()


@pytest.fixture
def written(broker: EmbeddedKafka, processor: ProcessorProcess):
    """Wait for a topic's records to satisfy a condition; return them."""

    def written(topic: str, condition: Callable[[list[Message]], bool]) -> list[Message]:
        def found() -> list[Message]:
            assert processor.is_running, processor.log_tail()
            records = messages(broker.bootstrap, topic)
            return records if condition(records) else []

        return poll_until(found, BATCH_S, f"the records of {topic}")

    return written


def answered(ask: Callable[[], Any], is_right: Callable[[Any], bool], what: str) -> Any:
    """Ask until the answer is right, through whatever happens before the node serves."""

    def answer() -> list[Any]:
        try:
            found = ask()
        except LookupFailure:
            return []
        return [found] if is_right(found) else []

    return poll_until(answer, BATCH_S, what)[0]


def settings_of(broker: EmbeddedKafka, topic: str) -> dict[str, str]:
    return topic_settings(admin(broker.bootstrap, "tests"), topic)


Written = Callable[[str, Callable[[list[Message]], bool]], list[Message]]


@pytest.mark.feature("tumbling-hopping-windows")
def test_windows_counted_by_spark_are_served(broker: EmbeddedKafka, written: Written, router: ServerProcess):
    topic = changelog_topic(application_id, "clicks-per-minute")
    expected = {
        WindowKey(b"ann", BEGAN_MS): b"2",
        WindowKey(b"bob", BEGAN_MS): b"1",
        WindowKey(b"ann", BEGAN_MS + MINUTE): b"1",
        WindowKey(b"bob", BEGAN_MS + MINUTE): b"1",
    }
    wanted = {key.to_bytes(): value for key, value in expected.items()}
    records = written(topic, lambda records: store_of(records) == wanted)
    for record in records:
        assert record.partition() == partition_for(WindowKey.from_bytes(record.key()).key, PARTITIONS)
    settings = settings_of(broker, topic)
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("compact,delete", str(25 * 60 * MINUTE))

    def windows() -> list[tuple[int, int, float]]:
        request = query_service_pb2.FetchWindowsRequest(store="clicks-per-minute", key=types_pb2.Key(text="ann"))
        found = router.call(router.query.FetchWindows, request).windows
        return [(each.start_ms, each.end_ms, each.value.json.number_value) for each in found]

    minutes = [BEGAN_MS, BEGAN_MS + MINUTE, BEGAN_MS + 2 * MINUTE]
    answered(windows, lambda found: found == [(*minutes[:2], 2), (*minutes[1:], 1)], "ann's windows")


def test_every_version_is_published_with_its_time(broker: EmbeddedKafka, written: Written, router: ServerProcess):
    topic = changelog_topic(application_id, "pages-over-time")
    records = written(topic, lambda records: len(records) >= len(CLICKED))
    found = [(each.key().decode(), each.value().decode(), each.timestamp()[1] - BEGAN_MS) for each in records]
    assert sorted(found, key=lambda each: each[2]) == CLICKED
    assert settings_of(broker, topic)["min.compaction.lag.ms"] == str(25 * 60 * MINUTE)

    def as_of(after_ms: int) -> str:
        request = query_service_pb2.GetAsOfRequest(
            store="pages-over-time", key=types_pb2.Key(text="ann"), as_of_ms=BEGAN_MS + after_ms
        )
        return router.call(router.query.GetAsOf, request).value.text

    answered(lambda: as_of(0), lambda page: page == "home", "ann's first page")
    assert [as_of(after) for after in (19_999, 20_000, 69_999, 70_000)] == ["home", "cart", "cart", "home"]


@pytest.mark.feature("store-whose-partitions")
@pytest.mark.long
def test_a_bounded_store_displaces_with_tombstones_and_every_replica_holds_the_same(
    broker: EmbeddedKafka, processor: ProcessorProcess, written: Written, new_node: Any, router: ServerProcess
):
    # A second apart, each key once: recency is the order of the numbers.
    visitors = [f"visitor-{number}" for number in range(1_000)]
    feed(broker.bootstrap, VISITORS, [(name, "", number * SECOND) for number, name in enumerate(visitors)])
    topic = changelog_topic(application_id, "last-visitors")
    by_partition = [[name for name in visitors if partition_for(name.encode(), PARTITIONS) == each] for each in (0, 1)]
    kept = {name.encode() for names in by_partition for name in names[-MAX_ENTRIES:]}
    records = written(topic, lambda records: set(store_of(records)) == kept)
    assert len(processor.events("batch committed")) > 3, "in more than one batch"
    tombstones = [record.key() for record in records if record.value() is None]
    puts = {record.key() for record in records if record.value() is not None}
    assert len(tombstones) == len(set(tombstones)) > 0
    assert set(tombstones) == puts - kept, "what is displaced has a tombstone, and nothing else"
    assert settings_of(broker, topic)["cleanup.policy"] == "compact"

    def held(process: ServerProcess) -> dict[str, float]:
        found: dict[str, float] = {}
        for partition in range(PARTITIONS):
            request = query_service_pb2.ScanRequest(store="last-visitors", partition=partition)
            entries = process.call(process.query.Scan, request).entries
            found |= {entry.key.text: entry.value.json.number_value for entry in entries}
        return found

    expected = {name.decode(): 1 for name in kept}
    answered(lambda: held(router), lambda found: found == expected, "the store")
    replica = new_node("n2")
    answered(lambda: held(replica), lambda found: found == expected, "the store, restored elsewhere")


def test_a_global_store_is_served_as_its_topic_is(broker: EmbeddedKafka, router: ServerProcess):
    answered(lambda: router.get("cart", store="pages"), lambda answer: answer.value.text == "Your cart", "a page")
    produce(broker.bootstrap, PAGES, [(b"cart", b"Basket")])
    answered(lambda: router.get("cart", store="pages"), lambda answer: answer.value.text == "Basket", "its new text")


@pytest.mark.feature("source-stores")
def test_a_source_store_follows_its_topic_in_tasks_of_its_own(
    broker: EmbeddedKafka, processor: ProcessorProcess, router: ServerProcess
):
    answered(lambda: router.get("cart", store="prices"), lambda answer: answer.value.json.number_value == 2, "a price")
    feed(broker.bootstrap, PRICES, [("cart", "3", 1), ("help", "4", 1), ("home", "5", 1)])
    for key, price in (("cart", 3), ("help", 4), ("home", 5)):
        answered(
            lambda key=key: router.get(key, store="prices"),
            lambda answer, price=price: answer.value.json.number_value == price,
            f"the price of {key}",
        )
    assert not router.get("nothing", store="prices").found, (
        "each partition is read, and all its keys stand where they must"
    )
    listed = router.call(router.fleet.ListStores, fleet_service_pb2.ListStoresRequest()).stores
    (prices,) = [store for store in listed if store.name == "prices"]
    assert prices.partition_count == PARTITIONS
    batches = processor.events("batch committed")
    assert not [each for each in batches if each.get("query") == "prices"], "no query of Spark's has to do with it"
    # A record at the wrong partition: absence can't be proven any more, and lookups ask all partitions.
    wrong = 1 - partition_for(b"stray", PARTITIONS)
    produce(broker.bootstrap, PRICES, [(b"stray", b"9")], partition=wrong)
    answered(lambda: router.get("stray", store="prices"), lambda answer: answer.value.json.number_value == 9, "a stray")


@pytest.mark.feature("session-windows-published")
def test_sessions_are_published_when_they_close_and_an_ephemeral_store_has_what_comes(
    broker: EmbeddedKafka, written: Written, router: ServerProcess
):
    topic = updates_topic(application_id, "last-page")
    settings = settings_of(broker, topic)
    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("delete", "600000")
    answered(
        lambda: router.get("ann", store="last-page"), lambda answer: answer.replica.ephemeral, "the ephemeral store"
    )

    visits = changelog_topic(application_id, "visits")
    last_ms = CLICKED[-1][2]
    early = written(visits, lambda records: len(records) == 2)
    ends = [SessionKey.from_bytes(record.key()).end_ms - BEGAN_MS for record in early]
    assert max(ends) + 30 * SECOND < last_ms - 10 * SECOND, "the others are still open"
    feed(broker.bootstrap, CLICKS, [("ann", "bye", LATER)])

    answered(lambda: router.get("ann", store="last-page"), lambda answer: answer.value.text == "bye", "ann's last page")

    closed = {
        SessionKey(b"ann", BEGAN_MS, BEGAN_MS + 20 * SECOND): b"2",
        SessionKey(b"ann", BEGAN_MS + 70 * SECOND, BEGAN_MS + 70 * SECOND): b"1",
        SessionKey(b"bob", BEGAN_MS + 5 * SECOND, BEGAN_MS + 5 * SECOND): b"1",
        SessionKey(b"bob", BEGAN_MS + 100 * SECOND, BEGAN_MS + 100 * SECOND): b"1",
    }
    wanted = {key.to_bytes(): value for key, value in closed.items()}
    records = written(visits, lambda records: store_of(records) == wanted)
    assert len(records) == len(wanted), "each once"
    for record in records:
        assert record.partition() == partition_for(SessionKey.from_bytes(record.key()).key, PARTITIONS)

    def sessions() -> list[tuple[int, int, float]]:
        request = query_service_pb2.FetchSessionsRequest(store="visits", key=types_pb2.Key(text="ann"))
        found = router.call(router.query.FetchSessions, request).sessions
        return [(each.start_ms - BEGAN_MS, each.end_ms - BEGAN_MS, each.value.json.number_value) for each in found]

    anns = [(0, 20 * SECOND, 2), (70 * SECOND, 70 * SECOND, 1)]
    answered(sessions, lambda found: found == anns, "ann's sessions")


@pytest.mark.feature("where-spark-state")
@pytest.mark.long
def test_a_killed_processor_goes_on_with_what_its_stores_held(
    broker: EmbeddedKafka, processor: ProcessorProcess, written: Written
):
    topic = changelog_topic(application_id, "last-visitors")
    before = set(store_of(messages(broker.bootstrap, topic)))
    processor.kill()
    # One newcomer a partition: each displaces one that only the state before the crash knows.
    newcomers = [next(name for name in map("new-{}".format, range(99)) if place(name) == each) for each in (0, 1)]
    feed(broker.bootstrap, VISITORS, [(name, "", 2_000 * SECOND) for name in newcomers])
    processor.start()
    processor.wait_for("processor started")
    kept = {name.encode() for name in newcomers}
    records = written(topic, lambda records: kept <= set(store_of(records)))
    after = set(store_of(records))
    assert len(after) == len(before)
    assert len(before - after) == len(newcomers)


def place(name: str) -> int:
    return partition_for(name.encode(), PARTITIONS)
