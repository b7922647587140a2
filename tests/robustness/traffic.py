"""Lookups through routers, by clients that each have a bound, at a steady rate whatever their outcome."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, ANY, AT_LEAST, MAX_LAG, MAX_STALENESS, Recorder
from tests.robustness.outcomes import Client, Outcomes
from tests.robustness.sender import Sender
from tests.support.fleet import STORE
from tests.support.polling import poll_until
from tests.support.secured import Keys as Certificates

BOUNDS: Final = (ANY, AT_LEAST, MAX_STALENESS, ANY, MAX_LAG, AT_LEAST, ACTIVE_ONLY, ANY)
"""The bound of each client."""
ANY_ROUTER: Final = "any"
"""In place of a router's name: the client knows all of them."""
_TIMEOUT_S: Final = 5.0
# For calls that any router may get: one of two routers may be frozen, and every other attempt goes there.
_ATTEMPT_S: Final = 0.25


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
    """All clients together, `rate` calls a second in sum.

    `batch`: for each bound there is one more client, which asks for so many keys in each call; 0: there is none.
    `routers`: addresses by name, given to clients in turn. `together`: each client has all of them instead, and does as
    docs/other-languages.md says: gRPC picks one for each call, and a lookup without an answer is soon sent again.
    `certificates`: the reader's is shown; None: nothing is encrypted.
    """

    def __init__(
        self,
        routers: Mapping[str, str],
        keys: Keys,
        partition_of: Callable[[str], int],
        rate: float,
        recorder: Recorder,
        bounds: Sequence[str] = BOUNDS,
        *,
        batch: int = 0,
        together: bool = False,
        certificates: Certificates | None = None,
    ) -> None:
        known = {router: [address] for router, address in sorted(routers.items())}
        targets = {ANY_ROUTER: [*routers.values()]} if together else known
        names = list(targets)
        asking = [(bound, 0) for bound in bounds] + [(bound, batch) for bound in bounds if batch]
        clients = [
            Client(f"c{number + 1}-{bound}", names[number % len(names)], bound, keys_of_call)
            for number, (bound, keys_of_call) in enumerate(asking)
        ]
        partitions = {key: partition_of(key) for key in keys.all}
        plan = {
            "targets": list(targets.values()),
            "rate": rate,
            "timeout_s": _TIMEOUT_S,
            "attempt_s": _ATTEMPT_S if together else 0,
            "store": STORE,
            "clients": [
                {
                    "target": names.index(client.router),
                    # Evenly apart, so that each key is asked for by somebody all the time.
                    "first": number * len(keys.all) // len(clients),
                    # Each field of a request comes once, as clients send it.
                    "request": "" if client.bound == AT_LEAST else _part(freshness=client.freshness),
                    "at_least": client.bound == AT_LEAST,
                    "batch": client.batch,
                }
                for number, client in enumerate(clients)
            ],
            "keys": [
                {"partition": partition, "request": _part(store=STORE, key=types_pb2.Key(text=key))}
                for key, partition in partitions.items()
            ],
        }
        addresses = {address: router for router, address in routers.items()}
        outcomes = Outcomes(clients, list(partitions.items()), addresses, recorder)
        self._sender = Sender(plan, outcomes.take, _TIMEOUT_S, _shown(certificates))
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


def _shown(certificates: Certificates | None) -> dict[str, Path]:
    """Return the sender's options that show a reader's certificate."""
    if certificates is None:
        return {}
    mine = certificates.issued["reader"]
    return {"tls-ca": certificates.authority.path, "tls-certificate": mine.certificate_path, "tls-key": mine.key_path}


def _part(**fields: Any) -> str:
    """Return a part of a request as JSON can carry it."""
    return base64.b64encode(query_service_pb2.GetRequest(**fields).SerializeToString()).decode()
