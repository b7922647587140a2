"""What a change of a topic means for the store that is read from it. Pure.

Lookups rest on a topic staying as it was when the store was opened: keys are placed by its number of partitions, a
state can be built anew only if the log keeps the last record of each key, and another topic under the same name is
another log. Code that relies on a topic looks at it again, and asks `TopicState.seen` what that means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

COMPACT: Final = "compact"
DELETE: Final = "delete"
MISSING_S: Final = 5.0
"""A topic counts as missing once brokers have not known it for so long: one that has just started may not yet."""


@dataclass(frozen=True, slots=True)
class FoundState:
    """A topic as brokers describe it. `policy`: the parts of its cleanup.policy; None if nobody has asked."""

    topic_id: str
    partitions: int
    policy: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as somebody relies on it.

    Attributes:
        partitions: how many it must have; None for any number.
        policy: its cleanup.policy as it was first seen; None before that.
        latest_policy: the same as it was last seen: it isn't asked for each time.
        missing_since: when brokers first didn't know it, in seconds of a clock that only grows; None while they do.
        change: how it differs from what is needed; "" if it doesn't.

    """

    partitions: int | None
    policy: frozenset[str] | None = None
    latest_policy: frozenset[str] | None = None
    missing_since: float | None = None
    change: str = ""

    def seen(self, found: FoundState | None, now: float) -> TopicState:
        """Take what brokers say of the topic now; return the following state.

        Another id is not reported here: what was read from the topic is then useless, and its reader begins anew.
        """
        if found is None:
            since = now if self.missing_since is None else self.missing_since
            change = "the topic doesn't exist any more" if now - since >= MISSING_S else self.change
            return replace(self, missing_since=since, change=change)
        latest = self.latest_policy if found.policy is None else found.policy
        policy = latest if self.policy is None else self.policy
        change = counted(self.partitions, found.partitions) or _policy_change(policy, latest)
        return TopicState(self.partitions, policy, latest, None, change)


def counted(needed: int | None, found: int) -> str:
    """Say that a topic has another number of partitions than is needed; "" if it hasn't."""
    if needed is None or found == needed:
        return ""
    return f"the topic has {found} partitions, and keys are placed by {needed}"


def _policy_change(before: frozenset[str] | None, now: frozenset[str] | None) -> str:
    """Say that a log no longer keeps what it kept; "" if it keeps as much as before, or more."""
    if before is None or now is None:
        return ""
    if COMPACT in before - now or DELETE in now - before:
        was, is_now = ",".join(sorted(before)), ",".join(sorted(now))
        return f"the topic's cleanup.policy was {was} and is {is_now or 'empty'}: it deletes what the store needs"
    return ""
