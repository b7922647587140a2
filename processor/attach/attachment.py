"""What is attached: other programs' states, each with a store of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from processor.attach.columns.mapping import ENCODING, EntryMapping
from processor.attach.operators import StateChoice
from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class AttachedState:
    """A state that is attached.

    Attributes:
        checkpoint: the directory of the other program's checkpoint, as it gives it as `checkpointLocation`.
        store: the name of the store.
        state: which state of the query.
        columns: how entries are made of it.
        partitions: the partition count of the changelog; default: its present one, else the state's, at most 8.

    """

    checkpoint: str
    store: str
    state: StateChoice = field(default_factory=StateChoice)
    columns: EntryMapping = field(default_factory=EntryMapping)
    partitions: int | None = None

    @property
    def form(self) -> str:
        """A digest of what is read and how: entries of another form must not stay in the store."""
        return hashlib.sha256(repr((ENCODING, self.state, self.columns)).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Attachment:
    """What is attached.

    Attributes:
        application_id: the application that the stores are served under. It has these stores only.
        states: the states, each with a store of its own.
        poll_interval_ms: how often to look for a new batch.

    Raises:
        ConfigurationError: two states have one store's name.

    """

    application_id: str
    states: Sequence[AttachedState]
    poll_interval_ms: int = 200

    def __post_init__(self) -> None:
        """Check the names."""
        names = [state.store for state in self.states]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigurationError(f"store {', '.join(twice)} is named for two states: give each a name of its own")
        sources = [repr((state.checkpoint, state.state, state.columns)) for state in self.states]
        same = [state.store for state, source in zip(self.states, sources, strict=True) if sources.count(source) > 1]
        if same:
            raise ConfigurationError(
                f"stores {', '.join(same)} would have the same state in the same form: name it once"
            )
