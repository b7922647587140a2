"""Produce the sample data: `python -m examples.leaderboard.produce --bootstrap HOST:PORT`."""

from __future__ import annotations

import typer

from examples.kafka_samples import BootstrapOption, PartitionsOption, create_missing_topics, produce_records
from examples.leaderboard import sample
from examples.leaderboard.topology import PLAYERS, PRODUCTS, SCORES
from statehouse.kafka.topics import TopicSpec


def create_source_topics(bootstrap: str, partitions: int) -> None:
    """Create missing source topics; tables are compacted."""
    compacted = {"cleanup.policy": "compact"}
    create_missing_topics(
        bootstrap,
        [
            TopicSpec(SCORES, partitions),
            TopicSpec(PLAYERS, partitions, compacted),
            TopicSpec(PRODUCTS, 1, compacted),
        ],
    )


def main(bootstrap: BootstrapOption, partitions: PartitionsOption = 4) -> None:
    """Create missing source topics, and produce the tables, then the scores."""
    create_source_topics(bootstrap, partitions)
    produce_records(bootstrap, PLAYERS, sample.player_records())
    produce_records(bootstrap, PRODUCTS, sample.product_records())
    produce_records(bootstrap, SCORES, sample.score_records())


if __name__ == "__main__":
    typer.run(main)
