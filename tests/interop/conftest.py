"""What the interop tests share."""

from __future__ import annotations

import pytest

from tests.interop.kafka_streams.program import KafkaStreamsPrograms, build_programs


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> KafkaStreamsPrograms:
    return build_programs(tmp_path_factory.mktemp("kafka-streams-build"))
