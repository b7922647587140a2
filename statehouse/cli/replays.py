"""Writes dead letters' source records to their topics again, and notes it, each once in a transaction."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

import typer
from confluent_kafka import KafkaException, Producer

from statehouse.cli import output as out
from statehouse.cli.letter_reads import Letters
from statehouse.cli.output import OutputFormat
from statehouse.cli.replay_plan import Place, ReplayPlan, Verdict, judge
from statehouse.contract.dead_letters import DeadLetter, note_headers
from statehouse.errors import ConfigurationError, StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.topic_changes import FoundState
from statehouse.kafka.topics import topic_states
from statehouse.kafka.transactions import FailureMeaning, TransactionalProducer, meaning_of

_AT_ONCE: Final = 500
"""Records of a transaction: few enough to be written long before it times out."""


class ReplayStopped(StatehouseError):
    """A replay could not write all; the text says how many it has written."""


def replay_letters(
    letters: Letters, is_wanted: Callable[[DeadLetter], bool], output: OutputFormat, *, answer: bool | None
) -> None:
    """Replay those that are wanted, and say how many of which topic; `answer`: to all questions, None: ask them.

    One replay of an application runs at a time: each fences the ones before it, and only then reads what those have
    noted. So no dead letter is replayed twice by two people at once.

    Raises:
        ConfigurationError: there is a question, and nobody who could answer it.
        ReplayStopped: not all were written.
        LookupFailure, KafkaException: the dead letters can't be read, or nothing can be written.

    """
    producer = TransactionalProducer(
        letters.brokers, f"{letters.application_id}-dead-letters-replay", letters.timeout_s, **{"linger.ms": 0}
    )
    try:
        producer.initialise()
        letters.refresh()
        plan = _plan(letters, is_wanted)
        chosen = plan.settled(lambda question: _is_agreed(question) if answer is None else answer)
        replayed: Counter[str] = Counter()
        for batch in _batches(letters.at(chosen) if chosen else ()):
            _write(producer, letters.topic, batch, replayed, len(chosen))
            replayed.update(letter.source.topic for letter in batch if letter.source is not None)
    finally:
        producer.close()
    _tell(plan, replayed, chosen, output)


def _plan(letters: Letters, is_wanted: Callable[[DeadLetter], bool]) -> ReplayPlan:
    """Judge all, without keeping their bytes: there may be many."""
    admin = clients.admin(letters.brokers, letters.client_id)
    topics: dict[str, FoundState] = {}
    asked: set[str] = set()
    verdicts: dict[Place, Verdict] = {}
    replayed: dict[Place, int] = {}
    for letter in letters.all(replayed):
        if not is_wanted(letter):
            continue
        if letter.source is not None and letter.source.topic not in asked:
            asked.add(letter.source.topic)
            topics |= topic_states(
                admin, [letter.source.topic], policies_of=[letter.source.topic], timeout_s=letters.timeout_s
            )
        verdicts[letter.partition, letter.offset] = judge(letter, letters.application_id, topics)
    return ReplayPlan.of(verdicts, replayed)


def _is_agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigurationError(
            f"{question} Nobody can answer here, so nothing was replayed: give --yes, or --no to leave these out"
        )
    return typer.confirm(question, err=True)


def _batches(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    rest = iter(letters)
    while batch := list(islice(rest, _AT_ONCE)):
        yield batch


def _write(
    producer: TransactionalProducer, topic: str, batch: list[DeadLetter], before: Counter[str], wanted: int
) -> None:
    def produce(client: Producer) -> None:
        for letter in batch:
            source, record = letter.source, letter.record
            assert source is not None  # noqa: S101 - those without one are left out by the plan
            client.produce(
                source.topic,
                partition=source.partition,
                key=record.key,
                value=record.value,
                headers=list(record.headers),
                timestamp=max(0, record.timestamp_ms),
            )
            client.produce(topic, partition=letter.partition, headers=note_headers(letter))

    try:
        producer.write(produce)
    except KafkaException as failure:
        meaning = meaning_of(failure)
        producer.abort()
        why = failure.args[0].str()
        if meaning in {FailureMeaning.FENCED, FailureMeaning.OVER}:
            why = "somebody else has begun a replay of this application"
        raise ReplayStopped(
            f"{before.total():,} of {wanted:,} dead letters are replayed, the others are not: {why}. Run it again with "
            "--no: it leaves out what is replayed"
        ) from failure


def _tell(plan: ReplayPlan, replayed: Counter[str], chosen: Iterable[Place], output: OutputFormat) -> None:
    left_out = plan.left_out()
    document = {"replayed": dict(replayed), "left_out": {verdict.name.lower(): n for verdict, n in left_out.items()}}

    def tables(_is_wide: bool) -> None:
        if replayed:
            out.print_table(["TOPIC", "REPLAYED"], sorted(replayed.items()))
        else:
            out.note("nothing was replayed")

    out.show(output, document, (f"{partition}:{offset}" for partition, offset in chosen), tables)
    for verdict, number in left_out.items():
        out.note(f"left out, {number:,} {verdict}")
