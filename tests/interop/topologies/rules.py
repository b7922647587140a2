"""Two rules of event time in plain Python, and of tables next to streams: Spark's by batch, Kafka Streams' by record.

Each gets records in order of arrival and says what stores must hold; both note of each event what became of it, so
that where the stores differ the events say why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

WINDOW_MS: Final = 60_000
GRACE_MS: Final = 5_000
WITHIN_MS: Final = 60_000
JOIN_GRACE_MS: Final = 10_000
HIGH_RATE: Final = 100
PLACES: Final = 3


class Beat(NamedTuple):
    """A heart beat."""

    number: int
    partition: int
    patient: str
    time_ms: int


class Fever(NamedTuple):
    """A temperature that is too high."""

    number: int
    partition: int
    patient: str
    time_ms: int


class HighPulse(NamedTuple):
    """A fast minute that is closed, at the time of its last beat."""

    partition: int
    patient: str
    start_ms: int
    rate: int
    time_ms: int


Alert = tuple[HighPulse, Fever]
Minute = tuple[str, int]


class Counting:
    """The beats of minutes, whichever rule lets them in."""

    def __init__(self) -> None:
        self.counts: dict[Minute, int] = defaultdict(int)
        self.last: dict[Minute, int] = defaultdict(int)
        self.dropped: set[int] = set()
        self._open: dict[Minute, int] = {}

    def _count(self, beat: Beat) -> None:
        minute = (beat.patient, beat.time_ms // WINDOW_MS * WINDOW_MS)
        self.counts[minute] += 1
        self.last[minute] = max(self.last[minute], beat.time_ms)
        self._open[minute] = beat.partition

    def _close(self, until_ms: int, partition: int | None = None) -> list[HighPulse]:
        """Return the fast ones of the minutes that end until then, and count them no more."""
        closed = [
            (minute, where)
            for minute, where in self._open.items()
            if minute[1] + WINDOW_MS <= until_ms and partition in {None, where}
        ]
        for minute, _ in closed:
            del self._open[minute]
        return [
            HighPulse(where, minute[0], minute[1], self.counts[minute], self.last[minute])
            for minute, where in sorted(closed)
            if self.counts[minute] >= HIGH_RATE
        ]


class Watermark:
    """Spark's clock of a query: it moves when a batch is done.

    A row is late if it is as old as the watermark of the batch before its own; what a batch closes, its own watermark
    says. Before there is an event the watermark is 0.
    """

    def __init__(self, delay_ms: int) -> None:
        self._delay_ms = delay_ms
        self.late_until_ms = self.closed_until_ms = 0

    def end_batch(self, times: Iterable[int]) -> bool:
        """Count a batch's events; return whether the watermark has moved: batches without data follow then."""
        self.late_until_ms = self.closed_until_ms
        self.closed_until_ms = max([self.closed_until_ms, *(time - self._delay_ms for time in times)])
        return self.closed_until_ms > self.late_until_ms


class CountsByBatch(Counting):
    """Counts as a query of Spark makes them: in update mode, or in append mode, where a closed minute goes on."""

    def __init__(self, *, append: bool) -> None:
        super().__init__()
        self._watermark, self._append = Watermark(GRACE_MS), append

    def batch(self, beats: Sequence[Beat]) -> list[HighPulse]:
        """Count a batch; return the fast minutes that are closed now."""
        for beat in beats:
            if beat.time_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS <= self._watermark.late_until_ms:
                self.dropped.add(beat.number)
            else:
                self._count(beat)
        closed = self._close(self._watermark.closed_until_ms)
        has_moved = self._watermark.end_batch(beat.time_ms for beat in beats)
        return closed + (self.batch([]) if has_moved and self._append else [])


class JoinByBatch:
    """Fast minutes with fevers near them, as Spark joins two streams with the larger of their watermarks.

    Both sides' rows that are late are dropped, whatever the other side still holds.
    """

    def __init__(self) -> None:
        self._watermark = Watermark(WITHIN_MS + JOIN_GRACE_MS + 1)
        self._pulses: list[HighPulse] = []
        self._fevers: list[Fever] = []
        self.dropped: set[HighPulse | Fever] = set()

    def batch(self, pulses: Sequence[HighPulse], fevers: Sequence[Fever]) -> list[Alert]:
        """Return the alerts of a batch."""
        rows = [*pulses, *fevers]
        late = {row for row in rows if row.time_ms <= self._watermark.late_until_ms}
        self.dropped |= late
        new_pulses = [pulse for pulse in pulses if pulse not in late]
        new_fevers = [fever for fever in fevers if fever not in late]
        found = [(pulse, fever) for pulse in new_pulses for fever in self._fevers + new_fevers if near(pulse, fever)]
        found += [(pulse, fever) for pulse in self._pulses for fever in new_fevers if near(pulse, fever)]
        self._pulses += new_pulses
        self._fevers += new_fevers
        if self._watermark.end_batch(row.time_ms for row in rows):
            self._watermark.end_batch(())  # a batch without data
        return found


def near(pulse: HighPulse, fever: Fever) -> bool:
    return pulse.patient == fever.patient and abs(pulse.time_ms - fever.time_ms) <= WITHIN_MS


class ByRecord(Counting):
    """The whole of patient monitoring as Kafka Streams runs it: each partition has its own clock, moved by each record.

    A join's late record still meets what the other side's store retains: width and grace behind its own newest.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream_time: dict[int, int] = defaultdict(int)
        self._newest: dict[tuple[int, type], int] = defaultdict(int)
        self._joined: list[HighPulse | Fever] = []
        self.high: list[HighPulse] = []
        self.alerts: list[Alert] = []

    def process(self, record: Beat | Fever) -> None:
        """Process one record, and all that follows from it."""
        if isinstance(record, Fever):
            self._join(record)
            return
        now_ms = max(self._stream_time[record.partition], record.time_ms)
        self._stream_time[record.partition] = now_ms
        if record.time_ms // WINDOW_MS * WINDOW_MS + WINDOW_MS <= now_ms - GRACE_MS:
            self.dropped.add(record.number)
            return
        self._count(record)
        for pulse in self._close(now_ms - GRACE_MS, record.partition):
            self.high.append(pulse)
            self._join(pulse)

    def _join(self, record: HighPulse | Fever) -> None:
        side = (record.partition, type(record))
        self._newest[side] = max(self._newest[side], record.time_ms)
        self._joined.append(record)
        retention_ms = 2 * WITHIN_MS + JOIN_GRACE_MS
        met = [
            other
            for other in self._joined
            if type(other) is not type(record)
            and other.partition == record.partition
            and other.time_ms > self._newest[record.partition, type(other)] - retention_ms
        ]
        pairs = [(record, other) if isinstance(record, HighPulse) else (other, record) for other in met]
        found = [(pulse, fever) for pulse, fever in pairs if near(pulse, fever)]  # type: ignore[arg-type]
        self.alerts += sorted(found, key=lambda pair: (pair[0].time_ms, pair[1].time_ms))  # type: ignore[arg-type]


class Row(NamedTuple):
    """A table's row; no name deletes it."""

    offset: int
    time_ms: int
    number: int
    name: str | None


class Score(NamedTuple):
    """A score."""

    offset: int
    time_ms: int
    product: int
    player: int
    score: int


Arrival = tuple[str, Row | Score]
"""A record with its topic."""


class Boards:
    """The three best of each product; of each score the names that it met, None for a row that wasn't there."""

    def __init__(self) -> None:
        self.names: dict[int, tuple[str | None, str | None]] = {}
        self._players: dict[int, str] = {}
        self._products: dict[int, str] = {}
        self._scores: dict[int, list[Score]] = defaultdict(list)

    def store(self) -> dict[str, list[dict[str, object]]]:
        return {
            str(product): [
                {
                    "playerId": score.player,
                    "productId": product,
                    "playerName": self.names[score.offset][0],
                    "gameName": self.names[score.offset][1],
                    "score": score.score,
                }
                for score in sorted(scores, key=lambda each: (-each.score, each.time_ms, each.offset))[:PLACES]
            ]
            for product, scores in self._scores.items()
        }

    def _meet_player(self, score: Score) -> None:
        self.names[score.offset] = (self._players.get(score.player), None)

    def _meet_product(self, score: Score) -> None:
        player, product = self.names[score.offset][0], self._products.get(score.product)
        if player is None:  # such a score goes no further
            return
        self.names[score.offset] = (player, product)
        if product is not None:
            self._scores[score.product].append(score)

    @staticmethod
    def _put(table: dict[int, str], row: Row) -> None:
        if row.name is None:
            table.pop(row.number, None)
        else:
            table[row.number] = row.name


class BoardsByBatch(Boards):
    """As our operators do it: players and scores of a batch by time, its products before all of its scores."""

    def batch(self, arrivals: Sequence[Arrival]) -> None:
        """Take a batch, each topic's records in order of arrival."""
        joined = [(topic, each) for topic, each in arrivals if topic != "products"]
        for _, each in sorted(joined, key=lambda pair: (pair[1].time_ms, isinstance(pair[1], Score), pair[1].offset)):
            if isinstance(each, Score):
                self._meet_player(each)
            else:
                self._put(self._players, each)
        for topic, each in arrivals:
            if isinstance(each, Row) and topic == "products":
                self._put(self._products, each)
        for _, each in arrivals:
            if isinstance(each, Score):
                self._meet_product(each)


class BoardsByRecord(Boards):
    """As Kafka Streams does it that gets one record after the other."""

    def process(self, topic: str, record: Row | Score) -> None:
        """Process one record."""
        if isinstance(record, Score):
            self._meet_player(record)
            self._meet_product(record)
        else:
            self._put(self._players if topic == "players" else self._products, record)


def rows_that_differ(ours: Boards, theirs: Boards) -> dict[int, set[str]]:
    """Return the scores that met other rows under the two rules, each with the tables where they did."""
    found: dict[int, set[str]] = {}
    for offset, (player, product) in ours.names.items():
        their_player, their_product = theirs.names[offset]
        differing = {"players"} if player != their_player else set()
        if product != their_product:
            differing.add("products")
        if differing:
            found[offset] = differing
    return found
