"""Produce the sample data: `python -m examples.patient_monitoring.produce --bootstrap HOST:PORT`."""

from __future__ import annotations

import typer

from examples.kafka_samples import BootstrapOption, PartitionsOption, create_missing_topics, produce_records
from examples.patient_monitoring import sample
from examples.patient_monitoring.topology import PULSES, TEMPERATURES
from statehouse.kafka.topics import TopicSpec


def create_source_topics(bootstrap: str, partitions: int) -> None:
    """Create the source topics that are missing."""
    create_missing_topics(bootstrap, [TopicSpec(topic, partitions) for topic in (PULSES, TEMPERATURES)])


def main(bootstrap: BootstrapOption, partitions: PartitionsOption = 4) -> None:
    """Create the source topics if they are missing, and produce the temperature, then the heart beats."""
    create_source_topics(bootstrap, partitions)
    produce_records(bootstrap, TEMPERATURES, sample.temperature_records())
    produce_records(bootstrap, PULSES, sample.pulse_records())


if __name__ == "__main__":
    typer.run(main)
