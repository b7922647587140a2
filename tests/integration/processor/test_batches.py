"""The changelogs and the commits topic alone tell what every batch was, also of a query whose driver was killed."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import Message

from processor.reports.commits import StoreChangelog
from statehouse.contract.batch_cuts import batch_in, is_state_of
from statehouse.contract.committed_moments import CommittedMoments
from statehouse.contract.moments import NONE
from statehouse.contract.topology import changelog_topic, commits_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.processor.support import commits, messages
from tests.support.bank import ACCOUNTS, SUMS, Bank
from tests.support.batches import BatchWriter
from tests.support.kafka import create_topic

PARTITIONS = 4
KILLED_IN, BATCHES = 5, 9


def spans(log: list[Message]) -> list[tuple[int, int, int]]:
    """Return what a replica keeps of a partition: the batch of the newest record, and its interval of offsets."""
    found, last, lo = [], NONE, 0
    for message in log:
        batch_id, offset = batch_in(message.headers()), int(message.offset() or 0)
        if batch_id != last:
            found.append((last, lo, offset))
        last, lo = batch_id, offset + 1
    return [*found, (last, lo, 2**62)]


def state_at(log: list[Message], end: int) -> dict[str, int]:
    state: dict[str, int] = {}
    for message in log:
        if int(message.offset() or 0) < end:
            key, value = (message.key() or b"").decode(), message.value()
            state.pop(key, None)
            if value is not None:
                (state[key],) = struct.unpack(">q", value)
    return state


def test_each_batch_is_named_and_cut(kafka: EmbeddedKafka, unique_name: Callable[[str], str]) -> None:
    application_id, bank = unique_name("bank"), Bank(PARTITIONS)
    changelogs = [StoreChangelog(each, changelog_topic(application_id, each), PARTITIONS) for each in (ACCOUNTS, SUMS)]
    for each in changelogs:
        create_topic(kafka.bootstrap, each.topic, PARTITIONS)
    create_topic(kafka.bootstrap, commits_topic(application_id))
    killed = BatchWriter(kafka.bootstrap, application_id, changelogs, "a-query")
    for batch_id in range(KILLED_IN):
        killed.write(batch_id, bank.records(batch_id))
    killed.write_half(KILLED_IN, bank.records(KILLED_IN))
    successor = BatchWriter(kafka.bootstrap, application_id, changelogs, "a-query", last=KILLED_IN - 1)
    for batch_id in range(KILLED_IN, BATCHES):
        successor.write(batch_id, bank.records(batch_id))
    killed.close()
    successor.close()

    moments = CommittedMoments()
    for commit in commits(kafka.bootstrap, commits_topic(application_id)):
        moments.take(commit)
    for changelog in changelogs:
        known = moments.of(changelog.store)
        assert [batch_id for batch_id, _ in known.batches] == list(range(BATCHES))
        logs: dict[int, list[Message]] = defaultdict(list)
        for message in messages(kafka.bootstrap, changelog.topic):
            logs[int(message.partition() or 0)].append(message)
        for batch_id in range(BATCHES):
            state: dict[str, int] = {}
            for partition in range(PARTITIONS):
                end = known.end(batch_id, partition)
                assert end is not None
                assert any(is_state_of(*span, batch_id, end) for span in spans(logs[partition])), (batch_id, partition)
                state |= state_at(logs[partition], end)
            assert state == bank.states[batch_id][changelog.store]
