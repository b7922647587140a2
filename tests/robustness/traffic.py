"""Lookups through routers, by clients that each have a bound, at a steady rate whatever their outcome."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Self

from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, ANY, AT_LEAST, MAX_LAG, MAX_STALENESS, Recorder
from tests.robustness.outcomes import Client, Outcomes
from tests.robustness.sender import Sender
from tests.support.fleet import STORE
from tests.support.polling import poll_until

BOUNDS: Final = (ANY, AT_LEAST, MAX_STALENESS, ANY, MAX_LAG, AT_LEAST, ACTIVE_ONLY, ANY)
"""The bound of each client."""
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys that exist from the first lookup on, and keys that never do."""

    existing: tuple[str, ...]
    absent: tuple[str, ...]

    @classmethod
    def spread(cls, partition_of: Callable[[str], int], partitions: int, per_partition: int) -> Keys:
        """Make as many for each partition; of absent ones a quarter, one at least."""

        def some(prefix: str, count: int) -> tuple[str, ...]:
            chosen: dict[int, list[str]] = {partition: [] for partition in range(partitions)}
            number = 0
            while any(len(keys) < count for keys in chosen.values()):
                key = f"{prefix}{number}"
                if len(chosen[partition_of(key)]) < count:
                    chosen[partition_of(key)].append(key)
                number += 1
            # In turn over the partitions, as keys in order would leave each partition alone for a while.
            return tuple(keys[nth] for nth in range(count) for keys in chosen.values())

        return cls(some("key-", per_partition), some("absent-", max(1, per_partition // 4)))

    @property
    def all(self) -> tuple[str, ...]:
        return self.existing + self.absent


class Traffic:
    """All clients together, `rate` lookups a second in sum; `routers`: addresses by name, given to clients in turn."""

    def __init__(
        self,
        routers: Mapping[str, str],
        keys: Keys,
        partition_of: Callable[[str], int],
        rate: float,
        recorder: Recorder,
        bounds: Sequence[str] = BOUNDS,
    ) -> None:
        names = sorted(routers)
        clients = [
            Client(f"c{number + 1}-{bound}", names[number % len(names)], bound) for number, bound in enumerate(bounds)
        ]
        partitions = {key: partition_of(key) for key in keys.all}
        plan = {
            "targets": [routers[name] for name in names],
            "rate": rate,
            "timeout_s": _TIMEOUT_S,
            "store": STORE,
            "clients": [
                {
                    "target": names.index(client.router),
                    # Evenly apart, so that each key is asked for by somebody all the time.
                    "first": number * len(keys.all) // len(clients),
                    "request": _part(freshness=client.freshness),
                    "at_least": client.bound == AT_LEAST,
                }
                for number, client in enumerate(clients)
            ],
            "keys": [
                {"partition": partition, "request": _part(store=STORE, key=types_pb2.Key(text=key))}
                for key, partition in partitions.items()
            ],
        }
        outcomes = Outcomes(clients, list(partitions.items()), recorder)
        self._sender = Sender(plan, outcomes.take, _TIMEOUT_S)
        self._recorder = recorder
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self._running.enter_context(self._sender)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sending and wait for every answer."""
        self._running.close()

    def require_running(self) -> None:
        """Raise AssertionError if lookups are no longer sent, or not understood."""
        self._sender.require_running()

    def wait(self, seconds: float) -> None:
        """Let it go on for so long; raise as `require_running`."""
        until = self._recorder.now + seconds

        def is_over() -> bool:
            self.require_running()
            return self._recorder.now >= until

        poll_until(is_over, seconds + 10, f"{seconds:g} s of traffic")


def _part(**fields: Any) -> str:
    """Return a part of a request as JSON can carry it."""
    return base64.b64encode(query_service_pb2.GetRequest(**fields).SerializeToString()).decode()
