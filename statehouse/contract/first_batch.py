"""Whether a store is built: whether a key's absence from it proves anything yet. Pure.

Before the first batch of a query is whole, its stores are empty, and an empty changelog looks like one that has been
read to its end. So a store into which the application's processor commits answers only once one of these holds:

- A record of the commits topic says that a batch was committed, and the replica has read up to the changelog's end that
  the record names. A part of a first batch is no more of a proof than nothing.
- Such a record says that there was nothing to commit: the query's sources have nothing that the store lacks.
- The partition had records when it was opened. They were committed, and a replica answers only once it has read all
  that was committed then, so the partition's part of a first batch is whole.

A store into which nobody commits (`StoreSpec.committed` is not set) is as whole as its topic.
"""

from __future__ import annotations

from collections.abc import Mapping

from statehouse.control.v1 import commits_pb2
from statehouse.errors import Reason

Ends = Mapping[int, int]
"""By partition of a changelog, an offset by which a batch was whole. A partition that isn't named counts as 0."""


def ends_proven(commit: commits_pb2.Commit) -> Ends | None:
    """Return up to where a replica must have read, so that it has a whole batch; None if the record proves none."""
    if commit.no_batch and not (commit.HasField("input_backlog") and commit.input_backlog == 0):
        return None
    return {each.partition: each.offset for each in commit.changelog_ends}


def earliest(known: Ends | None, proven: Ends | None) -> Ends | None:
    """Return what two records prove together: each is enough, so the earlier end of a partition is.

    A replica that always lags a little behind the newest record is built all the same. So is one of a topic that was
    deleted and created again, whose offsets begin anew.
    """
    if known is None or proven is None:
        return proven if known is None else known
    if all(known.get(partition, 0) <= end for partition, end in proven.items()) and known.keys() <= proven.keys():
        return known  # the usual case: nothing is copied
    return {partition: min(known[partition], proven[partition]) for partition in known.keys() & proven.keys()}


def obstacle(
    store: str, partition: int, position: int, proven: Ends | None, *, had_records: bool, is_read: bool
) -> tuple[Reason, str] | None:
    """Return why a replica of a store into which a processor commits may not answer yet; None if it may.

    Args:
        store: the store's name.
        partition: the replica's partition.
        position: up to where the replica has read.
        proven: what the records of the commits topic prove; None if there is none, or none proves anything.
        had_records: whether the partition had records when it was opened.
        is_read: whether the commits topic has been read to its end.

    """
    if had_records or (proven is not None and position >= proven.get(partition, 0)):
        return None
    if proven is not None:
        return Reason.STORE_NOT_BUILT, (
            f"the first batch of store {store} is committed, and this replica of partition {partition} is at offset "
            f"{position}, before the batch's end {proven.get(partition, 0)}"
        )
    if not is_read:
        return Reason.PARTITION_RESTORING, f"this node has not read yet what has been committed into store {store}"
    return Reason.STORE_NOT_BUILT, f"nothing has been committed into store {store} yet"
