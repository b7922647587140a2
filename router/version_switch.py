"""Which version's core answers: by the newest record of versions, once the router can route by it.

A router that has a table goes on with the version that it has, until it has one of the version that is to serve. One
that starts waits for that one alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

from router.version_core import VersionCore
from statehouse.contract.versions import Versions, not_started, unknown_version
from statehouse.runtime.background import BackgroundWork
from statehouse.v1 import fleet_service_pb2

log = structlog.get_logger(__name__)


class VersionSwitch:
    """The cores of a router, by version. Lives on the event loop.

    `make(version)` returns a core that follows its fleet. `on_switch(before, after)` is called when another one serves.
    """

    def __init__(
        self,
        first: VersionCore,
        make: Callable[[str], VersionCore],
        on_switch: Callable[[VersionCore, VersionCore], None],
    ) -> None:
        self._first, self._make, self._on_switch = first, make, on_switch
        self._cores: dict[str, VersionCore] = {first.version: first}
        self._closing = BackgroundWork()
        self.versions = Versions()
        """The newest record."""
        self.serving = first

    def __iter__(self) -> Iterator[VersionCore]:
        return iter(self._cores.values())

    def named(self, version: str) -> VersionCore:
        """Return a version's core; for "" the one that serves.

        Raises:
            LookupFailure: UNKNOWN_VERSION.

        """
        if not version:
            return self.serving
        core = self._cores.get(version)
        if core is None or version not in self.versions.all:
            raise unknown_version(version, self.versions.all)
        if not core.is_routed and core is not self.serving:
            raise not_started(version)
        return core

    def take(self, versions: Versions) -> None:
        """Take a record: have a core for each version, and switch if another one is to serve."""
        if versions == self.versions:
            return
        self.versions = versions
        for version in versions.all:
            if version not in self._cores:
                log.info("a version is followed", version=version)
                self._cores[version] = self._make(version)
        self.go_on()

    def go_on(self) -> None:
        """Switch if another version is to serve and the router can route by it, and drop those that are retired."""
        wanted = self._cores[self.versions.serving]
        before = self.serving
        if wanted is not before and (wanted.is_routed or not before.is_routed):
            before.left.set()
            wanted.left = asyncio.Event()
            self.serving = wanted
            log.info("another version serves", version=wanted.version, before=before.version)
            self._on_switch(before, wanted)
        for version, core in list(self._cores.items()):
            # The first one's topic has the record, so that it is followed in any case.
            if version not in self.versions.all and core is not self.serving and core is not self._first:
                del self._cores[version]
                log.info("a version is followed no more", version=version)
                self._closing.start(core.close(), f"close version {version}")

    def describe(self) -> fleet_service_pb2.Versions:
        """Return the versions as clients learn of them."""
        known = self.versions
        return fleet_service_pb2.Versions(
            serving=self.serving.version,
            number=known.number,
            names=known.all,
            before=known.before,
            kept_until_ms=known.kept_until_ms,
            wanted=known.serving,
        )

    async def close(self) -> None:
        """Close all cores."""
        await asyncio.gather(*(core.close() for core in self._cores.values()))
        await self._closing.finish()


async def until_left(core: VersionCore, work: Coroutine[Any, Any, None]) -> bool:
    """Do the work of a stream by a core until it is over, or another version serves; return whether one does.

    Raises:
        BaseException: what the work raises.

    """
    left = core.left
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left.wait())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # if the caller leaves just then, nobody else looks at it
    if task.cancelled():
        return left.is_set()
    if left.is_set() and task.exception() is not None:
        return True  # what it failed for is of the version from before
    task.result()
    return False
