"""Decides which dead letters go back to their topics, and about which somebody is asked first. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from statehouse.contract.dead_letters import DeadLetter
from statehouse.kafka.topic_changes import FoundState

Place = tuple[int, int]
"""The partition and offset of a dead letter."""


class Verdict(StrEnum):
    """What is done with a dead letter; the values say why it isn't replayed, or not yet."""

    REPLAY = "replayed"
    AGAIN = "replayed before"
    ROW = "of a topic that keeps the newest record of each key"
    NO_SOURCE = "of no source record, as an aggregate's row"
    NO_ORIGINAL = "without the bytes of its source record, which was gone, or by a processor of an earlier version"
    NO_TOPIC = "of a topic or partition that is gone"
    CHANGELOG = "of a store's changelog, which only the processor may write"


ASKED: Final = (Verdict.AGAIN, Verdict.ROW)
"""What is replayed if somebody says so."""
_OWN_SUFFIXES: Final = ("-changelog", "-updates")


def judge(letter: DeadLetter, application_id: str, topics: Mapping[str, FoundState]) -> Verdict:
    """Return what is done with a dead letter that wasn't replayed. `topics`: those that exist, with their policies.

    A row of a table may have been replaced since: its old record would put it back.
    """
    if letter.source is None:
        return Verdict.NO_SOURCE
    if not letter.is_original:
        return Verdict.NO_ORIGINAL
    topic = topics.get(letter.source.topic)
    if topic is None or letter.source.partition >= topic.partitions:
        return Verdict.NO_TOPIC
    if letter.source.topic.startswith(f"{application_id}-") and letter.source.topic.endswith(_OWN_SUFFIXES):
        return Verdict.CHANGELOG
    return Verdict.ROW if "compact" in (topic.policy or ()) else Verdict.REPLAY


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The dead letters by what is done with them."""

    places: Mapping[Verdict, Sequence[Place]]

    @classmethod
    def of(cls, verdicts: Mapping[Place, Verdict], replayed: Collection[Place]) -> ReplayPlan:
        """Return a plan of dead letters that are judged; `replayed`: the places of those that were replayed before."""
        places = defaultdict[Verdict, list[Place]](list)
        for place, verdict in verdicts.items():
            is_again = place in replayed and verdict in {Verdict.REPLAY, Verdict.ROW}
            places[Verdict.AGAIN if is_again else verdict].append(place)
        return cls(dict(places))

    def settled(self, is_agreed: Callable[[str], bool]) -> Collection[Place]:
        """Return the places of what is replayed, once the questions are answered."""
        agreed = [verdict for verdict in ASKED if verdict in self.places and is_agreed(self.question(verdict))]
        return [place for verdict in (Verdict.REPLAY, *agreed) for place in self.places.get(verdict, ())]

    def question(self, verdict: Verdict) -> str:
        """Return what is asked about such dead letters."""
        number = len(self.places[verdict])
        letters = "1 dead letter" if number == 1 else f"{number:,} dead letters"
        if verdict is Verdict.AGAIN:
            return f"{letters} of these {'was' if number == 1 else 'were'} replayed before. Replay again?"
        return (
            f"{letters} of these {'is' if number == 1 else 'are'} {Verdict.ROW}: a replay may put an old row in place "
            "of a newer one. Replay?"
        )

    def left_out(self) -> Counter[Verdict]:
        """Return how many can't be replayed, and why."""
        return Counter(
            {verdict: len(places) for verdict, places in self.places.items() if verdict not in {Verdict.REPLAY, *ASKED}}
        )
