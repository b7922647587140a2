"""Apply each record of a topic to a database exactly once: the position is committed in the effect's transaction.

`python -m examples.effects_once.consumer --topic program-tallies --database notices.db` follows the topic of the tally
example and inserts a notice for each record. Kill it when you like and start it again: no notice is lost or doubled.

The consumer joins no group and commits nothing to Kafka. Where it has to read on stands in the database, and changes
only together with the effects. A second process that follows the same topic finds that the position has moved
under it, and stops before it applies anything.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS notices (program TEXT, tally TEXT);
CREATE TABLE IF NOT EXISTS positions (
    topic TEXT, partition INTEGER, next_offset INTEGER NOT NULL, PRIMARY KEY (topic, partition)
);
"""
# Most records that one transaction applies.
_BATCH: Final = 500
_POLL_S: Final = 1.0
_TIMEOUT_S: Final = 10.0


class AppliedElsewhere(Exception):
    """Another process has applied records of this topic to the same database."""


class Notices:
    """The database: notices, and for each partition the next offset to apply."""

    def __init__(self, path: Path) -> None:
        """Open the database, and create its tables if they are missing."""
        self._db = sqlite3.connect(path, isolation_level=None, timeout=_TIMEOUT_S)
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def positions(self, topic: str) -> dict[int, int]:
        """Return the next offset of each partition from which records were applied."""
        rows = self._db.execute("SELECT partition, next_offset FROM positions WHERE topic = ?", (topic,))
        return dict(rows.fetchall())

    def apply(self, messages: Sequence[Message], known: Mapping[int, int]) -> dict[int, int]:
        """Apply records in one transaction with the new positions; return these.

        `known`: the positions from which the records were read, as `positions` or the last `apply` returned them.

        Raises:
            AppliedElsewhere: the positions in the database are others. Nothing was applied.

        """
        topic = _topic_of(messages)
        with self._db:  # commits at its end, rolls back at an exception
            self._db.execute("BEGIN IMMEDIATE")
            if self.positions(topic) != known:
                raise AppliedElsewhere(f"another process follows {topic} into this database; run only one")
            moved = dict(known)
            for message in messages:
                self._db.execute("INSERT INTO notices VALUES (?, ?)", (_text(message.key()), _text(message.value())))
                moved[_number(message.partition())] = _number(message.offset()) + 1
            rows = [(topic, partition, offset) for partition, offset in moved.items()]
            self._db.executemany("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", rows)
        return moved


def follow(bootstrap: str, topic: str, notices: Notices) -> None:
    """Apply the records of a topic, from where the database says, until the process is ended.

    Raises:
        AppliedElsewhere: another process follows the topic too.
        KafkaException: the topic can't be read; for one, records from the stored position on are no longer there.

    """
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "unused",  # the library wants one; no group is joined
        "enable.auto.commit": False,
        "isolation.level": "read_committed",  # or results of a batch that Spark gave up would have effects
        "auto.offset.reset": "error",  # skipping what is gone would lose effects without a word
    }
    with closing(Consumer(settings)) as consumer:
        known = notices.positions(topic)
        described = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if described.error is not None:
            raise KafkaException(described.error)
        consumer.assign(
            [TopicPartition(topic, each, known.get(each, OFFSET_BEGINNING)) for each in described.partitions]
        )
        while True:
            messages = consumer.consume(_BATCH, timeout=_POLL_S)
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
            if messages:
                known = notices.apply(messages, known)
                print(f"{len(messages)} applied, positions {known}", flush=True)


def _topic_of(messages: Sequence[Message]) -> str:
    topic: str | None = messages[0].topic()
    assert topic is not None  # noqa: S101 - a record that was read has one
    return topic


def _number(value: int | None) -> int:
    assert value is not None  # noqa: S101 - as above
    return value


def _text(data: bytes | str | None) -> str | None:
    return data.decode() if isinstance(data, bytes) else data


def main(
    topic: Annotated[str, typer.Option(help="Topic to follow.")],
    database: Annotated[Path, typer.Option(help="SQLite file; it is made if it is missing.")],
    bootstrap: Annotated[str, typer.Option(envvar="STATEHOUSE_BOOTSTRAP", help="Kafka's bootstrap servers.")],
) -> None:
    """Apply each record of a topic to a database exactly once. Ctrl-C ends it."""
    with closing(Notices(database)) as notices:
        try:
            follow(bootstrap, topic, notices)
        except AppliedElsewhere as error:
            sys.exit(str(error))
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library names it so
                sys.exit(f"{topic} no longer has the records after the stored position: decide what to do about them")
            sys.exit(f"{topic} can't be read from {bootstrap}: {cause.str()}")
        except KeyboardInterrupt:
            print("stopped")


if __name__ == "__main__":
    typer.run(main)
