"""Records of the commits topic, as tests of the router make them."""

from __future__ import annotations

from collections.abc import Mapping

from statehouse.control.v1 import commits_pb2
from tests.unit.router.fleets import STORE

CLICKS, VIEWS = ("clicks", 0), ("views", 0)


def commit(
    batch: int,
    sources: Mapping[tuple[str, int], int],
    changelog: Mapping[int, int],
    query: str = "q",
    *,
    is_moment: bool = False,
) -> commits_pb2.Commit:
    """The record of a batch: next offsets of the inputs, and of the changelog's partitions."""
    return commits_pb2.Commit(
        store=STORE,
        query_id=query,
        batch_id=batch,
        is_moment=is_moment,
        source_ends=[commits_pb2.TopicOffset(topic=t, partition=p, offset=o) for (t, p), o in sources.items()],
        changelog_ends=[commits_pb2.TopicOffset(topic="log", partition=p, offset=o) for p, o in changelog.items()],
    )
