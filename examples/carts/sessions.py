"""A user's shopping sessions; pure: events in, sessions out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

GAP_MS: Final = 30 * 60 * 1_000
"""A session ends when nothing happens for that long, or with a log-off."""

OPEN: Final = "open"
BOUGHT: Final = "bought"
ABANDONED: Final = "abandoned"
EMPTY: Final = "empty"


class Event(NamedTuple):
    """An action of a user; only add and remove use `item`."""

    at_ms: int
    action: str
    item: str


class Change(NamedTuple):
    """A new state of a session; items None: the session with these bounds no longer exists."""

    start_ms: int
    end_ms: int
    items: list[str] | None
    status: str


@dataclass(frozen=True, slots=True)
class Session:
    """An open session."""

    start_ms: int
    end_ms: int
    items: list[str] = field(default_factory=list)
    bought: bool = False
    shown: bool = False
    """Whether the session was put out with these bounds."""

    @property
    def expires_ms(self) -> int:
        """When inactivity ends it."""
        return self.end_ms + GAP_MS

    def to_json(self) -> dict[str, Any]:
        """Return the session as a JSON object; `Session(**...)` reads it."""
        return asdict(self)

    def with_event(self, event: Event) -> Session:
        """Return the session with an event added."""
        items, bought = [*self.items], self.bought
        match event.action:
            case "add":
                items.append(event.item)
            case "remove" if event.item in items:
                items.remove(event.item)
            case "purchase" if items:
                items, bought = [], True
        return replace(self, end_ms=max(self.end_ms, event.at_ms), items=items, bought=bought, shown=False)

    def ended(self) -> Change:
        """Return the final state of the session."""
        status = ABANDONED if self.items else BOUGHT if self.bought else EMPTY
        return Change(self.start_ms, self.end_ms, self.items, status)


def advance(session: Session | None, events: list[Event]) -> tuple[list[Change], Session | None]:
    """Apply a user's events, sorted by time; return the changes, and the session that stays open."""
    changes: list[Change] = []
    for event in events:
        if session is not None and event.at_ms > session.expires_ms:
            changes += [*_withdrawn(session), session.ended()]
            session = None
        before = session
        session = (session or Session(event.at_ms, event.at_ms)).with_event(event)
        if before is not None:
            changes += _withdrawn(before)
        if event.action == "logoff":
            changes.append(session.ended())
            session = None
    if session is not None and not session.shown:
        changes.append(Change(session.start_ms, session.end_ms, session.items, OPEN))
        session = replace(session, shown=True)
    return changes, session


def expire(session: Session) -> list[Change]:
    """Return the changes when inactivity ends a session."""
    return [*_withdrawn(session), session.ended()]


def _withdrawn(session: Session) -> Iterator[Change]:
    """Withdraw the session with these bounds, if it was put out."""
    if session.shown:
        yield Change(session.start_ms, session.end_ms, None, OPEN)
