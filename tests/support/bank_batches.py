"""What answers have shown of each batch of the bank, compared with each other and with the changelogs."""

from __future__ import annotations

import struct
import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from confluent_kafka import Message

from statehouse.contract.batch_cuts import batch_in
from statehouse.contract.moments import NONE
from tests.support.bank import Seen, is_balanced

Place = tuple[str, str]
"""A store and a key."""
Values = Mapping[Place, Sequence[tuple[int, int | None]]]
"""By key, the batches that changed it, in order, and what it had after each; None: it was deleted."""


class ShownBatches:
    """Collects what answers show. Any number of threads may add to it."""

    def __init__(self) -> None:
        self._shown: defaultdict[int, dict[Place, int | None]] = defaultdict(dict)
        self._adding = threading.Lock()
        self.newest = NONE
        """The newest batch that an answer was of."""

    def __len__(self) -> int:
        return len(self._shown)

    def add(self, seen: Seen) -> bool:
        """Return whether an answer is balanced, and shows what other answers of its batch have shown."""
        if seen.batch is None:
            return is_balanced(seen)
        shows = {(store, key): seen.shown[store].get(key) for store, keys in seen.asked.items() for key in keys}
        with self._adding:
            self.newest = max(self.newest, seen.batch)
            known = self._shown[seen.batch]
            is_alike = all(known.setdefault(place, value) == value for place, value in shows.items())
        return is_alike and is_balanced(seen)

    def unlike(self, values: Values) -> list[str]:
        """Return what was shown of a batch, and isn't what it has in truth."""
        return [
            f"batch {batch_id}, {place}: {value}, not {truth}"
            for batch_id, shown in sorted(self._shown.items())
            for place, value in shown.items()
            if value != (truth := _value_at(values.get(place, ()), batch_id))
        ]


def values_of(changelogs: Mapping[str, Iterable[Message]]) -> Values:
    """Return what changelogs say, by store; records of a key are in their order."""
    values: defaultdict[Place, list[tuple[int, int | None]]] = defaultdict(list)
    for store, records in changelogs.items():
        for record in records:
            value = record.value()
            number = None if value is None else struct.unpack(">q", value)[0]
            values[store, (record.key() or b"").decode()].append((batch_in(record.headers()), number))
    return values


def _value_at(values: Sequence[tuple[int, int | None]], batch_id: int) -> int | None:
    before = bisect_right(values, batch_id, key=itemgetter(0))
    return values[before - 1][1] if before else None
