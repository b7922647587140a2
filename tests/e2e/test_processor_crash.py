"""The driver is killed among thousands of events, and then a node: a standby controller replaces the node.

Afterwards every replica holds what plain Python computes.
"""

from __future__ import annotations

import json
import random
from collections import Counter

import grpc
import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from examples.leaderboard import sample
from examples.leaderboard.model import Score, leaderboards
from examples.leaderboard.topology import application_id
from statehouse.client import Client
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import dead_letters_topic
from statehouse.local.cluster import LocalCluster
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc
from tests.e2e.conftest import is_settled
from tests.support.kafka import produce
from tests.support.polling import poll_until

# The cluster's start, if this test comes first, and a second start of Spark.
pytestmark = pytest.mark.timeout(900)

STORE = "leader-boards"
MALFORMED = [b"{", b'{"score":1,"product_id":1000}', b'{"score":"1","product_id":1000,"player_id":1000}', b"7"]
PLAYERS = {number: f"Player {number}" for number in range(1000, 1040)}
PRODUCTS = {number: f"Game {number}" for number in range(1000, 1050)}


@pytest.mark.feature("exactly-once-batch")
@pytest.mark.feature("records-t-used")
@pytest.mark.feature("driver-killed-serving")
@pytest.mark.feature("standby-controller-without")
@pytest.mark.feature("driver-dies-then")
@pytest.mark.feature("acts-told-getfleet")
@pytest.mark.feature("failures-are-seen")
@pytest.mark.parametrize("good", [2_000, pytest.param(8_000, marks=pytest.mark.long)])
def test_nothing_is_lost_or_doubled_on_any_replica(cluster: LocalCluster, client: Client, good: int):
    of_each = good // 32
    produce(cluster.bootstrap, "players", [sample.named_row(*row) for row in PLAYERS.items()])
    produce(cluster.bootstrap, "products", [sample.named_row(*row) for row in PRODUCTS.items()])
    poll_until(
        lambda: is_settled(client), 120, "the fleet to settle: what is moved later, is so because a node is lost"
    )
    letters_before = len(messages(cluster.bootstrap, dead_letters_topic(application_id)))
    partitions = partition_count(cluster.bootstrap, "score-events")
    events = made_events(good, of_each)
    scores = send_events(cluster.bootstrap, events[: good // 3], partitions)
    poll_until(lambda: client.get(STORE, "1000").found, 180, "the first of the new boards")
    before = client.get(STORE, "1000").position
    scores += send_events(cluster.bootstrap, events[good // 3 :], partitions)
    # The sink commits partition by partition: once one has moved, the batch is under way.
    poll_until(lambda: client.get(STORE, "1000").position > before, 180, "the next batch to reach the changelog")
    cluster.processor.kill()
    poll_until(lambda: {query.state for query in client.fleet().queries} == {"SILENT"}, 30, "the silence to show")
    assert all(query.status is None or query.status.input_rows_per_second == 0 for query in client.fleet().queries)
    lose_a_node(cluster, client)
    cluster.processor.start()
    expected = leaderboards(scores, PLAYERS, PRODUCTS)
    assert len(scores) == good

    def all_equal() -> bool:
        return boards_by_node(cluster, client) == {
            (node, partition): {k: v for k, v in expected.items() if partition_for(k, store_partitions) == partition}
            for node, partition in holders(client)
        }

    store_partitions = next(store.partition_count for store in client.fleet().stores if store.name == STORE)
    poll_until(all_equal, 240, "every replica to hold what was computed")
    assert len(holders(client)) == 2 * store_partitions, "an active and a standby of each partition were compared"

    letters = messages(cluster.bootstrap, dead_letters_topic(application_id))[letters_before:]
    assert len(letters) == of_each * len(MALFORMED)
    places = Counter(
        (dict(letter.headers())["source_partition"], dict(letter.headers())["source_offset"]) for letter in letters
    )
    assert max(places.values()) == 1, "no malformed event is there twice"
    assert Counter(letter.value() for letter in letters) == Counter(dict.fromkeys(MALFORMED, of_each))


def lose_a_node(cluster: LocalCluster, client: Client) -> None:
    """Kill a node while there is no driver; start it again when the standby controller has replaced it."""
    actives = {task.task: task.active for task in client.fleet().tasks}
    lost = cluster.node(next(iter(actives.values())))
    theirs = {task for task, active in actives.items() if active == lost.name}
    lost.kill()

    def is_replaced() -> bool:
        tasks = client.fleet().tasks
        assert client.get(STORE, "1000").found, "standbys answer meanwhile"
        return all(task.active not in {None, lost.name} for task in tasks)

    poll_until(is_replaced, 60, "the standby controller to replace the node")
    assert {node.host.instance_id for node in client.fleet().nodes if node.state == "SILENT"} == {lost.name}
    controller = client.fleet().controller
    assert controller is not None
    assert controller.standby
    now = {task.task: task.active for task in client.fleet().tasks}
    # Where a lost task's standby was decides who has how many; the one with too many hands the rest on.
    promoted = Counter((now if task in theirs else actives)[task] for task in actives)
    too_many = max(promoted.values()) - -(-len(actives) // (len(cluster.nodes) - 1))
    moved = {task for task in actives.keys() - theirs if now[task] != actives[task]}
    assert len(moved) <= too_many, "no more was moved than balance asks for"
    lost.start()


def made_events(good: int, malformed_of_each: int) -> list[tuple[bytes, bool]]:
    """Return the events in the order to send them, each with whether it is a good one."""
    rng = random.Random(7)
    scores = [
        sample.score_event(rng.choice(list(PRODUCTS)), rng.choice(list(PLAYERS)), rng.randrange(50_000) / 2)
        for _ in range(good)
    ]
    events = [(value or b"", True) for _, value in scores] + [(each, False) for each in MALFORMED * malformed_of_each]
    rng.shuffle(events)
    return events


def send_events(bootstrap: str, events: list[tuple[bytes, bool]], partitions: int) -> list[Score]:
    """Send events; return the good ones with their places."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    sent: list[Message] = []

    def delivered(_error: object, message: Message) -> None:
        sent.append(message)

    for nth, (value, is_good) in enumerate(events):
        callback = delivered if is_good else None
        producer.produce("score-events", value=value, partition=nth % partitions, on_delivery=callback)
        producer.poll(0)
    assert producer.flush(60) == 0
    return [score_of(message) for message in sent]


def score_of(message: Message) -> Score:
    event = json.loads(message.value())
    return Score(
        message.timestamp()[1],
        message.partition(),
        message.offset(),
        event["product_id"],
        event["player_id"],
        event["score"],
    )


def holders(client: Client) -> set[tuple[str, int]]:
    """Return (node, partition) of every replica in the assignment."""
    return {
        (holder, int(task.task.split("_")[1]))
        for task in client.fleet().tasks
        for holder in (task.active, *task.standbys, *task.warm_ups)
    }


def boards_by_node(cluster: LocalCluster, client: Client) -> dict[tuple[str, int], dict[bytes, bytes]]:
    """Ask every node directly for every partition it holds; only the boards of this test."""
    found = {}
    for node, partition in holders(client):
        with grpc.insecure_channel(cluster.node(node).address) as channel:
            stub = query_service_pb2_grpc.QueryServiceStub(channel)
            request = query_service_pb2.ScanRequest(store=STORE, partition=partition, raw=True, page_size=1000)
            page = stub.Scan(request, timeout=10)
            assert not page.next_page_token
        content = {entry.key.raw: entry.value.raw for entry in page.entries}
        found[node, partition] = {key: value for key, value in content.items() if int(key) >= 1000}
    return found


def partition_count(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        return len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    finally:
        consumer.close()


def messages(bootstrap: str, topic: str) -> list[Message]:
    """Every committed message of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    count = partition_count(bootstrap, topic)
    found: list[Message] = []
    unfinished = set(range(count))
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(count)])

        def is_at_end() -> bool:
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
            return not unfinished

        poll_until(is_at_end, 30, f"the end of {topic}")
    finally:
        consumer.close()
    return found
