"""Readers of an application whose versions change: they notice failures, and answers that mix versions."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from statehouse.client import Answer, AsyncClient, Lookup
from statehouse.errors import LookupFailure
from tests.support.polling import poll_until

_PER_SECOND: Final = 300
_PAUSE_S: Final = 0.1


@dataclass
class Readers:
    """Read keys at a steady pace, in a thread, and watch the first one.

    Attributes:
        failed: failures that callers had.
        mixed: answers of several versions.
        reads: answers by version.
        watched: version, whether it is a current value, and value of each event.

    """

    target: str
    store: str
    keys: Sequence[str]
    failed: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    reads: dict[str, int] = field(default_factory=dict)
    watched: list[tuple[str, bool, Any]] = field(default_factory=list)
    began_at: dict[str, float] = field(default_factory=dict)
    """When the newest spell of answers of each version began, by the wall clock."""
    _is_over: threading.Event = field(default_factory=threading.Event)
    _newest: str = ""

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def wait_for(self, version: str, more: int = 200) -> None:
        least = self.reads.get(version, 0) + more
        poll_until(lambda: self.reads.get(version, 0) >= least, 120, f"answers of {version}")

    async def _run(self) -> None:
        async with AsyncClient(self.target) as client:
            watch = asyncio.create_task(self._watch(client))
            pending: set[asyncio.Task[None]] = set()
            pace = asyncio.get_running_loop().time()
            for number in itertools.count():
                if self._is_over.is_set():
                    break
                pace += 1 / _PER_SECOND
                await asyncio.sleep(max(0.0, pace - asyncio.get_running_loop().time()))
                task = asyncio.create_task(self._read(client, number))
                pending.add(task)
                task.add_done_callback(pending.discard)
            if pending:
                await asyncio.wait(pending)
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _read(self, client: AsyncClient, number: int) -> None:
        try:
            if number % 100:
                answers = [await client.get(self.store, self.keys[number % len(self.keys)], timeout=20.0)]
            else:
                outcomes = await client.batch_get([Lookup(self.store, key) for key in self.keys], timeout=20.0)
                self.failed += [str(each) for each in outcomes if isinstance(each, LookupFailure)]
                answers = [each for each in outcomes if isinstance(each, Answer)]
        except Exception as failure:  # noqa: BLE001 - whatever a caller sees
            self.failed.append(repr(failure))
            return
        versions = {answer.version for answer in answers}
        if len(versions) != 1:
            self.mixed.append(f"of {sorted(versions)}")
        for each in versions:
            if each != self._newest:
                self._newest, self.began_at[each] = each, time.time()
            self.reads[each] = self.reads.get(each, 0) + 1

    async def _watch(self, client: AsyncClient) -> None:
        watch = client.watch(self.store, self.keys[0])
        while True:
            try:
                async for update in watch:
                    stamp = (update.replica.version, update.current)
                    self.watched += [(*stamp, change.value) for change in update.changes]
            except LookupFailure:  # its router is gone: the client takes another one
                await asyncio.sleep(_PAUSE_S)
                watch = client.watch(self.store, self.keys[0], resume=watch.positions)
