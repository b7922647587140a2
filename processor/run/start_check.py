"""Checks, before a query starts, that its checkpoint fits the topics of its stores (see `checkpoint_fit`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from processor.reports.commits import StoreChangelog, offsets_of
from processor.run.checkpoint_fit import REMEDIES, CommitRecord, Misfit, Published, misfit
from processor.sink.protocol import SinkTarget, newest_written
from processor.spark.checkpoint import CheckpointReader, CheckpointState, Offsets
from statehouse.contract.processor_reports import decode_commit
from statehouse.contract.topology import commits_topic
from statehouse.errors import ConfigurationError, ContractError, StatehouseError
from statehouse.kafka import clients, codes
from statehouse.kafka.control_read import read_to_ends
from statehouse.kafka.offsets import earliest_offsets, end_offsets
from statehouse.runtime.brokers import Brokers

log = structlog.get_logger(__name__)

_READ_S: Final = 60.0
_LED_S: Final = 30.0
"""What a partition may take to get a leader once its topic is made."""
_LOOK_S: Final = 0.2


class CheckpointMisfit(ConfigurationError):
    """A query's checkpoint doesn't fit the changelog: to continue would lose events, or keep outdated entries."""


def last_commits(brokers: Brokers | str, application_id: str, stores: Collection[str]) -> dict[str, CommitRecord]:
    """Return the last record of each of the stores in an application's commits topic; the topic must exist.

    Raises:
        ConfigurationError: the topic can't be read within a minute, or the last record of a store can't be true.

    """
    found: dict[str, CommitRecord] = {}
    refused: dict[str, ContractError] = {}

    def on_record(key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        store = (key or b"").decode(errors="replace")
        found.pop(store, None)
        refused.pop(store, None)
        if value is None:  # the application was reset
            return
        try:
            commit = decode_commit(key, value)
        except ContractError as error:
            refused[store] = error
            return
        if commit.no_batch:  # it is as if there were none
            return
        found[store] = CommitRecord(
            commit.query_id, commit.batch_id, offsets_of(commit.source_ends), offsets_of(commit.changelog_ends)
        )

    topic = commits_topic(application_id)
    try:
        read_to_ends(brokers, {topic: on_record}, f"{application_id}-start", _READ_S)
    except (StatehouseError, KafkaException) as failure:
        raise ConfigurationError(f"{topic} says how far the stores are, and can't be read: {failure}") from failure
    for store in sorted(refused.keys() & set(stores)):
        raise ConfigurationError(
            f"the last record of store {store} in {topic} is none that a processor writes: {refused[store]}. Find out "
            "who wrote it; then reset the application"
        ) from refused[store]
    return {store: found[store] for store in stores if store in found}


def refuse_misfit(
    target: SinkTarget,
    changelogs: Sequence[StoreChangelog],
    checkpoint: CheckpointReader,
    *,
    accept_lost: bool,
    is_bounded: bool,
) -> frozenset[str]:
    """Refuse to start a query from a checkpoint that doesn't fit one of its stores; return the stores that were added.

    Into an added store nothing has been committed yet, though batches of its query have been.

    `accept_lost`: the operator accepts a new start over the existing entries. A bounded store can't do this: only its
    checkpoint knows its keys and the order of their updates.

    An older driver may still be running; it isn't fenced before this one is known to be allowed to start.

    Raises:
        CheckpointMisfit: the checkpoint doesn't fit; the text has the reason and the remedy.
        ConfigurationError: the brokers don't give the offsets of the topics, within half a minute.
        KafkaException: the brokers can't be reached, or refuse a right.

    """
    # Read in this order because an older driver may still run a batch: batches are planned before they are written,
    # and recorded before they are committed.
    written = newest_written(replace(target, query_id=checkpoint.query_id())) if checkpoint.exists() else None
    state = checkpoint.state()
    stores = [changelog.store for changelog in changelogs]
    records = last_commits(target.brokers, target.application_id, stores) if changelogs else {}
    added = set()
    for changelog in changelogs:
        record = records.get(changelog.store)
        if record is None and _is_new(changelogs, records, state):
            log.warning("a store was added to an existing query: it starts with new input only", store=changelog.store)
            added.add(changelog.store)
            continue
        starts, ends = _bounds(target, changelog)
        found = misfit(state, Published(record, starts, ends, written))
        if found is None:
            continue
        if found is Misfit.CHECKPOINT_LOST and accept_lost and not is_bounded:
            log.warning("the query starts from nothing over an existing changelog", changelog=changelog.topic)
            continue
        only_anew = " (not with max_entries: nothing would displace the existing entries)" if is_bounded else ""
        raise CheckpointMisfit(
            f"store {changelog.store}: {found.value} (checkpoint {checkpoint.directory}, changelog {changelog.topic}). "
            f"Remedy: {REMEDIES[found]}{only_anew if found is Misfit.CHECKPOINT_LOST else ''}"
        )
    return frozenset(added)


def _is_new(
    changelogs: Sequence[StoreChangelog], records: Mapping[str, CommitRecord], state: CheckpointState | None
) -> bool:
    """Whether a store without a commit record was added to a query whose other stores have one."""
    others = [records[each.store] for each in changelogs if each.store in records]
    return state is not None and any(other.query_id == state.query_id for other in others)


def _bounds(target: SinkTarget, changelog: StoreChangelog) -> tuple[Offsets, Offsets]:
    """Return the first offsets and the end offsets of a changelog."""
    admin = clients.admin(target.brokers, f"{target.application_id}-start")
    partitions = [(changelog.topic, partition) for partition in range(changelog.partition_count)]
    give_up_at = time.monotonic() + _LED_S
    while True:
        starts, ends = _known(earliest_offsets, admin, partitions), _known(end_offsets, admin, partitions)
        if len(starts) == len(ends) == len(partitions):
            return starts, ends
        if time.monotonic() >= give_up_at:
            raise ConfigurationError(
                f"{changelog.topic} has partitions that no broker leads: start again when all are led"
            )
        time.sleep(_LOOK_S)  # the topic was made a moment ago, and the broker is busy


def _known(
    ask: Callable[[AdminClient, Collection[tuple[str, int]]], Offsets],
    admin: AdminClient,
    partitions: Collection[tuple[str, int]],
) -> Offsets:
    try:
        return ask(admin, partitions)
    except KafkaException as failure:
        if failure.args[0].code() in codes.RIGHT_MISSING:
            raise
        return {}
