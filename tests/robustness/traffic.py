"""Lookups through routers, by clients with bounds of their own, at a steady rate whatever becomes of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from statehouse.errors import reason_name
from statehouse.topology import Role
from statehouse.v1 import query_service_pb2, types_pb2
from tests.robustness.history import ACTIVE_ONLY, ANY, AT_LEAST, MAX_LAG, MAX_STALENESS, LookupRecord, Recorder
from tests.support.fleet import STORE
from tests.support.lookups import Call, Lookup, OpenLoop

LARGEST_LAG: Final = 1_000
LARGEST_STALENESS_MS: Final = 5_000
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


class Client:
    """A simulated client: keys in turn under one bound; with AT_LEAST it carries a token of what it has seen."""

    def __init__(
        self,
        name: str,
        router: str,
        keys: Sequence[str],
        bound: str,
        partition_of: Callable[[str], int],
        recorder: Recorder,
    ) -> None:
        self._name, self._router, self._keys, self._bound = name, router, keys, bound
        self._partition_of, self._recorder = partition_of, recorder
        self._seen: dict[int, int] = {}
        self._lock = threading.Lock()

    def calls(self, first: int) -> Iterator[Call]:
        """Yield lookups for ever, beginning with the key of this number."""
        number = first
        while True:
            key = self._keys[number % len(self._keys)]
            number += 1
            freshness = self._freshness(self._partition_of(key))
            request = query_service_pb2.GetRequest(store=STORE, key=types_pb2.Key(text=key), freshness=freshness)
            yield request, self.take

    def _freshness(self, partition: int) -> types_pb2.Freshness:
        if self._bound == ACTIVE_ONLY:
            return types_pb2.Freshness(active_only=True)
        if self._bound == MAX_LAG:
            return types_pb2.Freshness(max_lag=LARGEST_LAG)
        if self._bound == MAX_STALENESS:
            return types_pb2.Freshness(max_staleness_ms=LARGEST_STALENESS_MS)
        with self._lock:
            seen = self._seen.get(partition)
        if self._bound == AT_LEAST and seen is not None:
            position = types_pb2.StorePosition(store=STORE, partition=partition, position=seen)
            return types_pb2.Freshness(at_least=types_pb2.Positions(positions=[position]))
        return types_pb2.Freshness()

    def take(self, lookup: Lookup) -> None:
        """Note what came of a lookup."""
        record = _record(self._name, self._router, self._bound, self._partition_of(lookup.key), self._recorder, lookup)
        if record.position is not None:
            with self._lock:
                self._seen[record.partition] = max(record.position, self._seen.get(record.partition, 0))
        self._recorder.add(record)


def _record(client: str, router: str, bound: str, partition: int, recorder: Recorder, lookup: Lookup) -> LookupRecord:
    asked = lookup.request.freshness
    at_least = asked.at_least.positions[0].position if asked.at_least.positions else None
    known = {
        "client": client,
        "router": router,
        "key": lookup.key,
        "partition": partition,
        "due_at": recorder.at(lookup.due_at),
        "took_s": lookup.took_s,
        "bound": bound,
        "max_lag": asked.max_lag if asked.HasField("max_lag") else None,
        "max_staleness_ms": asked.max_staleness_ms if asked.HasField("max_staleness_ms") else None,
        "at_least": at_least,
    }
    failure, response = lookup.failure, lookup.response
    if response is None:
        assert failure is not None
        candidates = tuple(
            f"{each.host.instance_id}: {reason_name(each.reason)} {each.detail}".rstrip() for each in failure.candidates
        )
        return LookupRecord(**known, reason=failure.reason.name, message=failure.message, candidates=candidates)
    stamp = response.replica
    return LookupRecord(
        **known,
        found=response.found,
        version=int(response.value.text) if response.found else None,
        host=stamp.host.instance_id,
        role=Role(stamp.role).name,
        epoch=stamp.epoch,
        position=stamp.position if stamp.HasField("position") else None,
        lag=stamp.lag if stamp.HasField("lag") else None,
        staleness_ms=stamp.staleness_ms if stamp.HasField("staleness_ms") else None,
    )


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
        self._loops = ExitStack()
        names = sorted(routers)
        calls: dict[str, list[Iterator[Call]]] = {name: [] for name in names}
        for number, bound in enumerate(bounds):
            router = names[number % len(names)]
            client = Client(f"c{number + 1}-{bound}", router, keys.all, bound, partition_of, recorder)
            # Evenly apart, so that each key is asked for by somebody all the time.
            calls[router].append(client.calls(number * len(keys.all) // len(bounds)))
        self._made = [
            OpenLoop(routers[name], _in_turn(calls[name]), rate * len(calls[name]) / len(bounds), _TIMEOUT_S)
            for name in names
        ]

    def __enter__(self) -> Self:
        for loop in self._made:
            self._loops.enter_context(loop)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sending and wait for every answer."""
        self._loops.close()


def _in_turn(clients: Sequence[Iterator[Call]]) -> Iterator[Call]:
    """Take one lookup of each client, over and over."""
    return (next(client) for client in itertools.cycle(clients))
