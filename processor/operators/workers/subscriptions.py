"""Joins a table with the rows that its foreign keys name: the logic of the two state operators; pure.

The first operator is keyed by the left table's key. It remembers each left row's foreign key, and subscribes the left
key where its matches will be: at its foreign key. The second operator is keyed by the foreign key. It keeps the left
rows that are subscribed there, and the right row.

Both see a batch whole, and of a batch only the end counts. At its end a left key is subscribed at one place or at none.
Only that place puts out a row for the key, and where it is subscribed nowhere, the place that it left. So a batch has
at most one row for a left key, and it joins what both tables hold after that batch: results can't overtake one another,
and need no version as in Kafka Streams (docs/adr/0012).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from processor.operators.order import RecordPosition
from processor.operators.workers.joined_rows import LEFT, RIGHT, Joined, Sides, put_out
from processor.operators.workers.keyed import GROUP, ROWS, TIME, States, positions, without_letters
from processor.rows import OFFSET, PARTITION

ROW: Final = "row"
"""The text of a row that changed; null if it was deleted."""
FOREIGN_KEY: Final = "foreign_key"
LEFT_KEY: Final = "left_key"
PLACE: Final = "place"
ACTION: Final = "action"

FOREIGN_KEYS: Final = "foreign_keys"
"""The state with the foreign key of each left row: GROUP, FOREIGN_KEY."""
SUBSCRIPTIONS: Final = "subscriptions"
"""The state with the left rows at each place: GROUP, LEFT_KEY, LEFT."""

_NAMED: Final = "="
"""Begins a place that is a foreign key."""
_NOWHERE: Final = "!"
"""Begins the place of a left row without foreign key. Each has its own, so that they spread over all buckets."""

_FOREIGN_KEYS: Final = pa.schema([(GROUP, pa.binary()), (FOREIGN_KEY, pa.string())])
_SUBSCRIPTIONS: Final = pa.schema([(GROUP, pa.binary()), (LEFT_KEY, pa.string()), (LEFT, pa.string())])
_RIGHT_ROWS: Final = pa.schema([(GROUP, pa.binary()), (RIGHT, pa.string())])
_SENT: Final = pa.schema(
    [
        (TIME, pa.int64()),
        (PARTITION, pa.int32()),
        (OFFSET, pa.int64()),
        (PLACE, pa.string()),
        (ACTION, pa.int8()),
        (LEFT_KEY, pa.string()),
        (ROW, pa.string()),
    ]
)

Touched = Callable[[pa.Table], pa.ChunkedArray]
"""Flags the rows of a state that a batch touches."""


class SubscriptionAction(IntEnum):
    """What a place does for a left key, at the end of a batch."""

    SUBSCRIBE = 0
    """The left row is new, or has changed and stays."""
    MOVE_IN = 1
    """As SUBSCRIBE; the key was subscribed elsewhere, where a row may have been put out that has to go."""
    MOVE_OUT = 2
    """The left row is subscribed elsewhere now; that place puts out what is to be known of it."""
    UNSUBSCRIBE = 3
    """The left row is gone."""


class SubscriptionUpdate(NamedTuple):
    """What the first operator tells a place."""

    position: RecordPosition
    place: str
    action: SubscriptionAction
    left_key: str
    row: str | None = None


class RowChange(NamedTuple):
    """A row after a change, and a left row's foreign key; the row is None if it was deleted."""

    position: RecordPosition
    row: str | None
    foreign_key: str | None = None


class SubscriptionRow(NamedTuple):
    """A left row where it is subscribed."""

    place: bytes
    row: str


def place_of(foreign_key: str) -> str:
    """Return the place where a right row's left rows are subscribed."""
    return f"{_NAMED}{foreign_key}"


@dataclass(frozen=True)
class SubscriptionProgram:
    """Subscribes the left keys of a bucket; `keeps_unmatched`: rows without a foreign key have a joined row too."""

    keeps_unmatched: bool

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (FOREIGN_KEYS,)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return dead letters and the updates to the places, and the state to keep; side 0 is the left table."""
        live, letters = without_letters(sides[0])
        if not live.num_rows:
            return [letters], {}
        last = last_changes(live, ROW, FOREIGN_KEY)
        kept, rest = split_touched(states.get(FOREIGN_KEYS), _FOREIGN_KEYS, lambda table: is_in(table[GROUP], last))
        before = dict(zip(kept[GROUP].to_pylist(), kept[FOREIGN_KEY].to_pylist(), strict=True))
        sent: list[SubscriptionUpdate] = []
        after: dict[bytes, str | None] = {}
        for key, change in last.items():
            known = self._place(key.decode(), before[key]) if key in before else None
            sent += self.of_key(key.decode(), change, known)
            if self._is_there(change):
                after[key] = change.foreign_key
        added = pa.table([list(after), list(after.values())], schema=_FOREIGN_KEYS)
        return [letters, _sent(sent)], {FOREIGN_KEYS: pa.concat_tables([rest, added])}

    def of_key(self, left_key: str, change: RowChange, place: str | None) -> list[SubscriptionUpdate]:
        """Return the updates to places for a left key's last change in a batch; `place` is where it was subscribed."""
        now = self._place(left_key, change.foreign_key) if self._is_there(change) else None
        sent = []
        if place is not None and place != now:
            leaves = SubscriptionAction.UNSUBSCRIBE if now is None else SubscriptionAction.MOVE_OUT
            sent.append(SubscriptionUpdate(change.position, place, leaves, left_key))
        if now is not None:
            comes = SubscriptionAction.SUBSCRIBE if place in {None, now} else SubscriptionAction.MOVE_IN
            sent.append(SubscriptionUpdate(change.position, now, comes, left_key, change.row))
        return sent

    def _is_there(self, change: RowChange) -> bool:
        return change.row is not None and (self.keeps_unmatched or change.foreign_key is not None)

    @staticmethod
    def _place(left_key: str, foreign_key: str | None) -> str:
        return f"{_NOWHERE}{left_key}" if foreign_key is None else place_of(foreign_key)


@dataclass(frozen=True)
class SubscriptionJoinProgram:
    """Joins what is subscribed at the places of a bucket; `keeps_unmatched`: a left row without match is put out."""

    keeps_unmatched: bool

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the kept states."""
        return (SUBSCRIPTIONS, ROWS)

    def run(self, sides: Mapping[int, pa.Table], states: States) -> tuple[list[pa.Table], States]:
        """Return dead letters and the joined rows that changed, and the states to keep.

        Side 0 has the updates to places, by place; side 1 the right table, by `place_of` its keys. Only the rows of
        the states that the batch touches become objects.
        """
        letters: list[pa.Table] = []
        sent: dict[tuple[bytes, str], SubscriptionUpdate] = {}
        rights: dict[bytes, RowChange] = {}
        if 0 in sides:
            told, refused = without_letters(sides[0])
            letters.append(refused)
            sent = {(each.place.encode(), each.left_key): each for each in _told(told)}
        if 1 in sides:
            live, refused = without_letters(sides[1])
            letters.append(refused)
            rights = last_changes(live, ROW)
        keys = {left_key for _, left_key in sent}
        touched, rest = split_touched(
            states.get(SUBSCRIPTIONS),
            _SUBSCRIPTIONS,
            lambda table: pc.or_(is_in(table[LEFT_KEY], keys), is_in(table[GROUP], rights)),
        )
        columns = (column.to_pylist() for column in touched.columns)
        subscribed = {left_key: SubscriptionRow(place, row) for place, left_key, row in zip(*columns, strict=True)}
        places = {place for place, _ in sent} | rights.keys() | {each.place for each in subscribed.values()}
        known, other = split_touched(states.get(ROWS), _RIGHT_ROWS, lambda table: is_in(table[GROUP], places))
        rows = dict(zip(known[GROUP].to_pylist(), known[RIGHT].to_pylist(), strict=True))
        joined, subscribed_after, rows_after = self.of_places(sent, rights, subscribed, rows)

        changed = {}
        if sent:
            columns_after = [
                [each.place for each in subscribed_after.values()],
                list(subscribed_after),
                [each.row for each in subscribed_after.values()],
            ]
            changed[SUBSCRIPTIONS] = pa.concat_tables([rest, pa.table(columns_after, schema=_SUBSCRIPTIONS)])
        if rights:
            added = pa.table([list(rows_after), list(rows_after.values())], schema=_RIGHT_ROWS)
            changed[ROWS] = pa.concat_tables([other, added])
        return [*letters, put_out(joined)], changed

    def of_places(
        self,
        sent: Mapping[tuple[bytes, str], SubscriptionUpdate],
        rights: Mapping[bytes, RowChange],
        subscribed: Mapping[str, SubscriptionRow],
        rows: Mapping[bytes, str],
    ) -> tuple[list[tuple[bytes, Joined]], dict[str, SubscriptionRow], dict[bytes, str]]:
        """Return the joined rows that changed, the subscribed rows, and the right rows afterwards.

        Args:
            sent: the updates to places, by place and left key.
            rights: the last change of each right row, by place.
            subscribed: what was subscribed before, of the left keys in `sent` and of the places in `rights`.
            rows: the right rows before, at all these places.

        """
        rows_after = {place: row for place, row in rows.items() if place not in rights}
        rows_after |= {place: change.row for place, change in rights.items() if change.row is not None}
        after = dict(subscribed)
        last = {left_key: each for (_, left_key), each in sent.items() if each.row is None}
        for left_key in last:
            after.pop(left_key, None)
        for (place, left_key), each in sent.items():
            if each.row is not None:
                after[left_key], last[left_key] = SubscriptionRow(place, each.row), each
        joined = []
        for left_key in last.keys() | subscribed.keys():
            told, now = last.get(left_key), after.get(left_key)
            if told is not None and told.action is SubscriptionAction.MOVE_OUT:
                continue
            shown = self._joined(subscribed.get(left_key), rows)
            shows = self._joined(now, rows_after)
            may_be_shown = told is not None and told.action is SubscriptionAction.MOVE_IN and left_key not in subscribed
            if shows != shown or (shows is None and may_be_shown):
                of_right = rights.get(now.place) if now is not None else None
                causes = [each.position for each in (told, of_right) if each is not None]
                joined.append((left_key.encode(), Joined(max(causes), shows)))
        return sorted(joined), after, rows_after

    def _joined(self, left: SubscriptionRow | None, rows: Mapping[bytes, str]) -> Sides | None:
        right = None if left is None else rows.get(left.place)
        if left is None or (right is None and not self.keeps_unmatched):
            return None
        return Sides(left.row, right)


def last_changes(live: pa.Table, *columns: str) -> dict[bytes, RowChange]:
    """Return the last change of each key of a table, by position; `columns` have the rows, and their foreign keys."""
    changes = map(RowChange, positions(live).each(), *(live[name].to_pylist() for name in columns))
    last: dict[bytes, RowChange] = {}
    for key, change in zip(live[GROUP].to_pylist(), changes, strict=True):
        if key not in last or last[key].position <= change.position:
            last[key] = change
    return last


def split_touched(table: pa.Table | None, schema: pa.Schema, is_touched: Touched) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a state that a batch touches, and the others."""
    if table is None:
        return schema.empty_table(), schema.empty_table()
    flags = is_touched(table)
    return table.filter(flags), table.filter(pc.invert(flags))


def is_in(column: pa.ChunkedArray, values: Iterable[str] | Iterable[bytes]) -> pa.ChunkedArray:
    """Flag the rows that have one of the values."""
    return pc.is_in(column, pa.array(list(values), column.type))


def _told(table: pa.Table) -> Iterator[SubscriptionUpdate]:
    columns = (table[name].to_pylist() for name in (GROUP, ACTION, LEFT_KEY, ROW))
    for position, (place, action, left_key, row) in zip(
        positions(table).each(), zip(*columns, strict=True), strict=True
    ):
        yield SubscriptionUpdate(position, place.decode(), SubscriptionAction(action), left_key, row)


def _sent(sent: Sequence[SubscriptionUpdate]) -> pa.Table:
    columns = [
        [each.position.timestamp_ms * 1000 for each in sent],
        [each.position.partition for each in sent],
        [each.position.offset for each in sent],
        [each.place for each in sent],
        [each.action.value for each in sent],
        [each.left_key for each in sent],
        [each.row for each in sent],
    ]
    return pa.table(columns, schema=_SENT)
