"""Readers go on when the only broker comes back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from statehouse.kafka.control_log import ControlLogReader
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until

READERS = 60
RESTARTS = 8


@pytest.mark.long  # a client forgets the broker in one restart of some dozens
@pytest.mark.timeout(600)
def test_no_reader_is_lost_with_a_broker_that_names_none_while_it_starts(tmp_path: Path) -> None:
    read = [0] * READERS
    defects: list[Exception] = []

    def count(number: int, *_record: object) -> None:
        read[number] += 1

    with EmbeddedKafka(data_dir=tmp_path) as kafka:
        create_topic(kafka.bootstrap, "topic")
        readers = [
            ControlLogReader(
                kafka.bootstrap, "topic", partial(count, number), client_id=f"reader-{number}", on_broken=defects.append
            )
            for number in range(READERS)
        ]
        for reader in readers:
            reader.start()
        for expected in range(1, RESTARTS + 2):
            produce(kafka.bootstrap, "topic", [(b"k", b"v")])
            poll_until(partial(lambda count: min(read) >= count, expected), 30, "every reader to read on")
            kafka.stop()
            kafka.start()
        assert read == [RESTARTS + 1] * READERS, "each record once"
        for reader in readers:
            reader.stop()
    assert not defects
