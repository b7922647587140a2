"""The leaderboard's application file, as it is, submitted to a standalone cluster whose executors come and go."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path

import pytest

from examples.leaderboard import sample
from examples.leaderboard.model import Score, leaderboards
from examples.leaderboard.topology import PLAYERS, PRODUCTS, SCORES, STORE, application_id
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.process import ProcessIdentity, descendants
from statehouse.local.samples import create_topics
from tests.integration.processor.support import ProcessorProcess, messages, store_of
from tests.support.kafka import produce, produce_placed
from tests.support.polling import poll_until
from tests.support.spark_cluster import ENVIRONMENT, SparkCluster, command_line, spark_submit

CHANGELOG = changelog_topic(application_id, STORE)
PARTITIONS, SCORES_MADE, SCORES_A_BATCH = 4, 8_000, 800
PLAYER_NAMES = {number: f"Player {number}" for number in range(40)}
PRODUCT_NAMES = {number: f"Game {number}" for number in range(50)}
DEADLINE_S = 300.0
# As soon as one of a stage's tasks is done, each other that has taken as long is attempted a second time.
EAGER_SPECULATION = [
    *("--conf", "spark.speculation=true", "--conf", "spark.speculation.interval=50ms"),
    *("--conf", "spark.speculation.quantile=0.1", "--conf", "spark.speculation.multiplier=1.0"),
    *("--conf", "spark.speculation.minTaskRuntime=0ms"),
]


@pytest.mark.feature("executors-processes-their")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_leaderboard_is_the_same_on_a_cluster_whose_executors_come_and_go(tmp_path: Path):
    with EmbeddedKafka() as broker, SparkCluster(tmp_path / "spark", workers=2) as cluster:
        create_topics(broker.bootstrap, sample.TOPICS, PARTITIONS)
        produce(broker.bootstrap, PLAYERS, [sample.named_row(*row) for row in PLAYER_NAMES.items()])
        produce(broker.bootstrap, PRODUCTS, [sample.named_row(*row) for row in PRODUCT_NAMES.items()])
        produce_placed(broker.bootstrap, SCORES, made_scores())
        options = ["--max-offsets", str(SCORES_A_BATCH), "--sink-tasks", "2", *EAGER_SPECULATION]
        program = spark_submit(cluster.url)
        driver = ProcessorProcess(
            "examples.leaderboard.topology", broker.bootstrap, tmp_path, *options, program=program, env=ENVIRONMENT
        )
        driver.start()
        try:
            driver.wait_for("batch committed", 1, DEADLINE_S)
            cluster.wait_for_executors(2)[0].send(signal.SIGKILL)
            driver.wait_for("batch committed", 3, DEADLINE_S)
            cluster.add_worker()
            cluster.wait_for_executors(3)
            driver.wait_for("batch committed", 5, DEADLINE_S)
            cluster.remove_worker(cluster.workers[0])
            cluster.wait_for_executors(2)

            expected = leaderboards(scores_in(broker), PLAYER_NAMES, PRODUCT_NAMES)
            poll_until(
                lambda: driver.is_running and store_of(messages(broker.bootstrap, CHANGELOG)) == expected,
                DEADLINE_S,
                "the changelog to hold what was computed",
            )
        finally:
            stop_submitted(driver)


def stop_submitted(driver: ProcessorProcess) -> None:
    """Stop a submitted driver in order: the signal is the Python program's, not spark-submit's."""
    assert driver.is_running, driver.log_tail()
    (program,) = [child for child in descendants(driver.pid) if "processor/cli.py" in command_line(child.pid)]
    assert isinstance(program, ProcessIdentity)
    program.send(signal.SIGTERM)
    assert driver.wait(60) == 0, driver.log_tail()


def made_scores() -> list[tuple[int, bytes | None, bytes | None, int]]:
    """Return the scores as records, all over the partitions."""
    rng = random.Random(1)
    events = [
        sample.score_event(rng.choice(list(PRODUCT_NAMES)), rng.choice(list(PLAYER_NAMES)), rng.randrange(50_000) / 2)
        for _ in range(SCORES_MADE)
    ]
    return [(nth % PARTITIONS, key, value, 0) for nth, (key, value) in enumerate(events)]


def scores_in(broker: EmbeddedKafka) -> list[Score]:
    """Return the scores of the source topic, each with its place."""
    found = []
    for message in messages(broker.bootstrap, SCORES):
        event = json.loads(message.value())
        place = (message.timestamp()[1], message.partition(), message.offset())
        found.append(Score(*place, event["product_id"], event["player_id"], event["score"]))
    return found
