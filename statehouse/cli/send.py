"""`statehouse send`: writes records to a topic, to try an application."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Final

import typer
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from statehouse.cli import output as out
from statehouse.cli.kafka_options import takes_kafka
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients, codes
from statehouse.kafka.access import check_login, failures_told
from statehouse.kafka.topics import partition_counts
from statehouse.observability import logs
from statehouse.runtime.brokers import Brokers
from statehouse.settings import LoadedSettings, ProcessSettings

_CLIENT: Final = "statehouse-send"
_LINES: Final = "-"
_REFUSALS: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: "send a smaller value",
    KafkaError.INVALID_RECORD: "if it is a compacted topic, give a key",
}


@dataclass(frozen=True, slots=True)
class SentRecord:
    """Where a record is now."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return TOPIC:PARTITION:OFFSET, as --after-input takes it."""
        return f"{self.topic}:{self.partition}:{self.offset}"


COLUMNS: Final[Sequence[Column[SentRecord]]] = (
    Column("TOPIC", lambda each: each.topic),
    Column("PARTITION", lambda each: each.partition),
    Column("OFFSET", lambda each: each.offset),
)


@takes_kafka
def send(
    loaded: LoadedSettings[ProcessSettings],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic to write to; it must exist.", show_default=False)
    ],
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[KEY] VALUE",
            help="Text of the record's key, if it has one, and of its value. The value - reads values from standard "
            "input, one a line. What begins with - otherwise stands after --.",
            show_default=False,
        ),
    ],
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for the broker, for each record.")
    ] = 10.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write a record to a topic, or one for each line of standard input, and say where it is.

    A key selects the partition as Kafka's Java client does it. -o name prints what --after-input takes.

    Example: statehouse send events ann '{"amount": 3}'
    """
    if len(words) > 2:
        raise typer.BadParameter("give a value, or a key and a value: put quotes around one that has blanks")
    logs.configure("WARNING")
    brokers = loaded.settings.brokers
    key = words[0].encode() if len(words) == 2 else None
    values = _lines() if words[-1] == _LINES else iter([words[-1].encode()])
    check_login(brokers, _CLIENT, timeout)
    with failures_told(brokers):
        ensure_exists(brokers, topic, timeout)
        producer = clients.producer(brokers, _CLIENT, **producer_options(timeout))
        sent = (_sent(producer, topic, key, value, timeout) for value in values)
        if output in {OutputFormat.TABLE, OutputFormat.WIDE} and words[-1] == _LINES:
            for record in sent:
                print(record, flush=True)
        else:
            out.show_each(output, COLUMNS, sent, str, value=str)


def ensure_exists(brokers: Brokers, topic: str, timeout_s: float) -> None:
    """Return if there is such a topic.

    Raises:
        ConfigurationError: there is none; the text says what to do.
        KafkaException: the brokers can't be reached, or refuse.

    """
    admin = clients.admin(brokers, _CLIENT)
    if partition_counts(admin, [topic], timeout_s)[topic] is not None:
        return
    meant = get_close_matches(topic, admin.list_topics(timeout=timeout_s).topics, 1)
    hint = f"did you mean {meant[0]}? Else create it" if meant else "create it"
    raise ConfigurationError(
        f"there is no topic {topic} at {brokers}: {hint} (kafka-topics --create --topic {topic} ...); nothing was sent"
    )


def producer_options(timeout_s: float) -> dict[str, str | float | bool]:
    """Return what a producer for single records is made with."""
    return {"partitioner": "murmur2_random", "linger.ms": 0, "message.timeout.ms": max(1, int(timeout_s * 1000))}


def _lines() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


def _sent(producer: Producer, topic: str, key: bytes | None, value: bytes, timeout_s: float) -> SentRecord:
    """Write a record and wait for the broker, so that its place is printed before the next is read."""
    try:
        message = _delivered(producer, topic, key, value, timeout_s)
    except KafkaException as failure:
        remedy = _REFUSALS.get(failure.args[0].code())
        if remedy is None:
            raise
        raise ConfigurationError(f"{topic} does not take the record, {failure.args[0].str()}: {remedy}") from failure
    return SentRecord(topic, int(message.partition() or 0), int(message.offset() or 0))


def _delivered(producer: Producer, topic: str, key: bytes | None, value: bytes, timeout_s: float) -> Message:
    outcomes: list[tuple[KafkaError | None, Message]] = []
    producer.produce(topic, key=key, value=value, on_delivery=lambda *outcome: outcomes.append(outcome))
    producer.flush(timeout_s + 1)  # a message is given up before
    if not outcomes:
        raise KafkaException(KafkaError(codes.TIMED_OUT, f"no answer within {timeout_s:g} s"))
    error, message = outcomes[0]
    if error is not None:
        raise KafkaException(error)
    return message
