"""Ids of a watch's events: where to go on after them, in each partition; by moment, after the last mark. Pure.

A browser sends the id of the last event that it has had as Last-Event-ID when it connects again. So each id has the
positions of all partitions of the watch: TOPIC_ID/PARTITION:OFFSET,PARTITION:OFFSET; of a later version than the first
TOPIC_ID@VERSION/...
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from statehouse.client import conversion
from statehouse.client.answers import WatchPosition
from statehouse.client.watch_progress import WatchProgress
from statehouse.contract.version_names import plain_store, store_at, version_of
from statehouse.contract.watch_marks import mark_in, token_of
from statehouse.errors import shown
from statehouse.v1 import query_service_pb2, types_pb2

PARTITIONS_MAX: Final = 1_000
"""Partitions of a watch: their ids must fit into a header."""
_PART: Final = re.compile(
    r"([A-Za-z0-9+/=_-]{0,64}(?:@[A-Za-z0-9_]{1,31})?)/([0-9]{1,10}:[0-9]{1,19}(?:,[0-9]{1,10}:[0-9]{1,19})*)"
)
_OFFSET_MAX: Final = 2**63 - 1
_PARTITION_MAX: Final = 2**31 - 1


class Progress(WatchProgress):
    """How far a watch has got, also as an id."""

    @property
    def id(self) -> str:
        """The positions as text; empty if no partition has one yet."""
        return text_of(self.positions)


class MarkedProgress(Progress):
    """How far a watch by moment has got. Its id is the token of the last mark."""

    def __init__(self, token: str) -> None:
        """Go on after a mark; empty: begin.

        Raises:
            ValueError: it is no mark's token.

        """
        mark = mark_in(token) if token else query_service_pb2.WatchMark()
        super().__init__(map(conversion.from_position, mark.positions))
        self._id = token
        self.moment: types_pb2.Moment | None = mark.moment if token else None

    @property
    def id(self) -> str:
        """The token; empty if nothing has been marked."""
        return self._id

    def marked(self, mark: query_service_pb2.WatchMark) -> None:
        """Take note of a mark."""
        self._id, self.moment = token_of(mark), mark.moment


def text_of(positions: Iterable[WatchPosition]) -> str:
    """Return positions as an id."""
    by_topic: defaultdict[str, list[str]] = defaultdict(list)
    for each in sorted(positions, key=lambda each: each.partition):
        by_topic[store_at(each.topic_id, each.version)].append(f"{each.partition}:{each.offset}")
    return ";".join(f"{topic}/{','.join(found)}" for topic, found in sorted(by_topic.items()))


def positions_of(text: str) -> tuple[WatchPosition, ...]:
    """Return the positions of an id; none of an empty one.

    Raises:
        ValueError: it is none.

    """
    found: dict[int, WatchPosition] = {}
    for part in text.split(";") if text else ():
        matched = _PART.fullmatch(part)
        if matched is None:
            raise ValueError(f"{shown(text)} is no id of an event")
        topic, places = matched.groups()
        for place in places.split(","):
            partition, offset = map(int, place.split(":"))
            if partition in found or partition > _PARTITION_MAX or offset > _OFFSET_MAX:
                raise ValueError(f"{shown(text)} is no id of an event")
            found[partition] = WatchPosition(partition, offset, plain_store(topic), version=version_of(topic))
    if len(found) > PARTITIONS_MAX:
        raise ValueError(f"an id of an event has {PARTITIONS_MAX} partitions at most, not {len(found)}")
    return tuple(found.values())
