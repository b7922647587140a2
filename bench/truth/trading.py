"""Writes what happens in the bank to the source, in bursts, and keeps the ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from bench.failure import BenchFailure
from bench.truth import SOURCE
from bench.truth.bank import Bank, Transfer, pairs
from bench.truth.checks import Ledger
from statehouse.kafka import clients

BURST: Final = 150
EVERY_S: Final = 2.0
_WRITTEN_WITHIN_S: Final = 30.0


class Trading:
    """A bank at work: `burst` transfers every `every_s`; by default Spark comes to rest between them.

    `named`: the pairs of accounts; by default two that are in different ones of so many partitions.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: int,
        seed: int,
        *,
        named: list[tuple[str, str]] | None = None,
        burst: int = BURST,
        every_s: float = EVERY_S,
    ) -> None:
        self.pairs = pairs(partitions) if named is None else named
        self.bank, self.ledger = Bank(self.pairs, seed), Ledger()
        self._partitions, self._burst, self._every_s = partitions, burst, every_s
        self._producer = clients.producer(bootstrap, "truth", **{"linger.ms": 0})
        self._failures: list[object] = []

    def open(self) -> None:
        """Open all accounts."""
        self._write(self.bank.opened())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Trade meanwhile; when it ends, the source has all of it."""
        stop = threading.Event()
        thread = threading.Thread(target=self._trade, args=(stop,), name="bank")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        if self._failures:
            raise BenchFailure(f"the source didn't take transfers: {self._failures[:3]}")

    def _trade(self, stop: threading.Event) -> None:
        due_at = time.monotonic()
        while not stop.wait(max(0.0, due_at - time.monotonic())):
            due_at += self._every_s
            self._write(self.bank.traded(self._burst))

    def _write(self, transfers: Iterable[Transfer]) -> None:
        for each in transfers:
            self.ledger.send(each)
            self._producer.produce(
                SOURCE,
                key=str(each.pair),
                value=each.text,
                partition=each.pair % self._partitions,
                on_delivery=self._delivered_to(each),
            )
        left = self._producer.flush(_WRITTEN_WITHIN_S)
        if left:
            self._failures.append(f"{left} not acknowledged")

    def _delivered_to(self, transfer: Transfer) -> object:
        def delivered(error: object, _message: object) -> None:
            if error is None:
                self.ledger.acknowledge(transfer, time.monotonic())
            else:
                self._failures.append(error)

        return delivered
