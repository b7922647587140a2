"""The sample data as files for Kafka's console producer: the same records as the programs of the examples produce."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from examples.leaderboard import sample as leaderboard
from examples.leaderboard.sample import Record
from examples.patient_monitoring import sample as patients
from statehouse.contract.partitioning import partition_for
from statehouse.local.java import find_java
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic, read_all
from tests.support.tools import TOOLS, built

pytestmark = pytest.mark.timeout(120)

EXAMPLES: Final = Path(__file__).parents[3] / "examples"
PARTITIONS: Final = 4


def patient_records(topic: str) -> list[Record]:
    chosen = (sample for sample in patients.RECORDS if sample.topic == topic)
    return [(str(sample.key).encode(), str(sample.value).encode()) for sample in chosen]


FILES: Final[dict[str, list[Record]]] = {
    "leaderboard/data/players.txt": leaderboard.player_records(),
    "leaderboard/data/products.txt": leaderboard.product_records(),
    "leaderboard/data/score-events.txt": leaderboard.score_records(),
    "patient_monitoring/data/pulse-events.txt": patient_records(patients.PULSES),
    "patient_monitoring/data/body-temp-events.txt": patient_records(patients.TEMPERATURES),
}


def lines(records: Iterable[Record]) -> str:
    """Return records as the books' files have them: the key, a bar, the value; without a key, the value alone."""
    return "".join(
        (b"" if key is None else key + b"|").decode() + (value or b"").decode() + "\n" for key, value in records
    )


@pytest.mark.feature("samples-files-kafka")
@pytest.mark.parametrize("file", FILES)
def test_a_file_has_the_records_of_the_example(file: str) -> None:
    assert (EXAMPLES / file).read_text(encoding="utf-8") == lines(FILES[file])


def test_every_file_is_checked() -> None:
    assert {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.glob("*/data/*")} == set(FILES)


@pytest.mark.feature("samples-files-kafka")
@pytest.mark.parametrize("file", ["leaderboard/data/players.txt", "leaderboard/data/score-events.txt"])
def test_the_console_producer_sends_them(kafka: EmbeddedKafka, unique_name: Callable[[str], str], file: str) -> None:
    topic, records = unique_name("events"), FILES[file]
    create_topic(kafka.bootstrap, topic, PARTITIONS)
    jars = Path(built(TOOLS / "kafka-console" / ".ready")).parent
    command = [find_java(), "-cp", f"{jars}/*", "org.apache.kafka.tools.ConsoleProducer", "--topic", topic]
    command += ["--bootstrap-server", kafka.bootstrap]
    has_keys = records[0][0] is not None
    if has_keys:
        command += ["--property", "parse.key=true", "--property", "key.separator=|"]
    with (EXAMPLES / file).open("rb") as data:
        done = subprocess.run(command, stdin=data, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for partition in range(PARTITIONS) if has_keys else ():
        here = [
            (key, value) for key, value in records if key is not None and partition_for(key, PARTITIONS) == partition
        ]
        assert read_all(kafka.bootstrap, topic, [partition]) == here
    assert sorted(map(repr, read_all(kafka.bootstrap, topic, range(PARTITIONS)))) == sorted(map(repr, records))
