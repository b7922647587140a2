"""Brings stores from other nodes, as files, where that gets a replica to its log's end sooner.

Belongs to the event loop. `states.sources` and `states.manifest` decide; what was brought is opened as any state on
disk is, by the same rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError

from query_service.dataplane.holding import FOLDER, holds
from query_service.dataplane.orders import DataPlane
from query_service.disk.directory import FETCHED_FOLDER
from query_service.replicas.opening import FoundStore, StoreOpener
from query_service.replicas.replica import StoreReplica, monotonic_and_wall_ms
from query_service.replicas.transfers import Transfer
from query_service.states.faults import Fault, FaultOutcome, TaskFault, fault_of
from query_service.states.manifest import (
    Manifest,
    ManifestUnusable,
    StoredFile,
    accepted,
    by_our_clock,
    checked_checkpoint,
    checked_files,
)
from query_service.states.sources import (
    LeftToRead,
    Peer,
    Rates,
    is_cheaper,
    is_too_slow,
    is_worth_asking,
    offered_within_s,
)
from query_service.stores.engine import StoreUnusable
from query_service.telemetry.events import StorePartition
from query_service.telemetry.metrics import NodeMetrics
from query_service.telemetry.restore_display import LOG_INTERVAL_S
from query_service.telemetry.restore_progress import RestoreProgress
from statehouse.contract.topology import AnyTaskId
from statehouse.control.v1 import engine_pb2, files_pb2
from statehouse.errors import StatehouseError
from statehouse.rpc.failures import from_rpc_error
from statehouse.runtime.clocks import process_clock
from statehouse.settings import NodeSettings
from statehouse.v1 import peer_service_pb2

log = structlog.get_logger(__name__)

T = TypeVar("T")

FindPeers = Callable[[AnyTaskId, str, int], Awaitable[Sequence[Peer]]]
"""Returns who can give a store's partition of a task, in the order in which they are asked."""

_OFFER: Final = "/statehouse.v1.PeerService/OfferStore"
_AT_ONCE: Final = 3
_TRIES: Final = 3
_GOES: Final = 3
"""Of so many checkpoints of a peer files are fetched, as long as each brings something."""
_PAUSE_S: Final = 0.3
_LOOKED_EVERY_S: Final = 0.5
_GIVE_NONE_MAX: Final = 1_000
_GIVES_NONE: Final = "its version gives no stores to other nodes"
_SPARE_BYTES: Final = 64 * 1024 * 1024
"""What stays free on a disk that files are fetched to."""


class NotWanted(StatehouseError):
    """The node shall no longer have the task."""


@dataclass(slots=True)
class Brought:
    """What became of the attempt to bring a store.

    Attributes:
        peer: whose files are there now; empty if nobody's are.
        passed_over: which nodes' aren't, and why.
        is_anew: whether what was found on the disk is no longer what is there, or no longer open.

    """

    peer: str = ""
    passed_over: list[str] = field(default_factory=list)
    is_anew: bool = False


@dataclass(frozen=True, slots=True)
class _Errand:
    """A store that is to be brought, with what its log still has; the rest is as in `FileRestores.bring`."""

    found: FoundStore
    left: LeftToRead
    transfers: MutableMapping[str, Transfer]
    is_wanted: Callable[[], bool]


class FileRestores:
    """Brings stores from other nodes."""

    def __init__(
        self,
        settings: NodeSettings,
        plane: DataPlane,
        opener: StoreOpener,
        peers: FindPeers,
        metrics: NodeMetrics,
    ) -> None:
        self._after_s = settings.peers_asked_after_ms / 1000
        self._silence_ms = settings.peer_silence_ms
        self._plane, self._opener, self._peers, self._metrics = plane, opener, peers, metrics
        assumed = Rates(settings.assumed_log_records_per_s)
        limit = settings.peer_bytes_per_s or assumed.file_bytes_s
        self._rates = replace(assumed, file_bytes_s=min(assumed.file_bytes_s, limit))
        self._restoring: dict[StoreReplica, tuple[int, float]] = {}
        self._from: dict[Path, str] = {}  # whose files a store had last
        self._distrusted: set[tuple[Path, str]] = set()
        self._give_none: dict[str, str] = {}  # runs of nodes whose version has no such call
        self._progress = RestoreProgress(LOG_INTERVAL_S)

    # What the log takes.

    def reads(self, replica: StoreReplica) -> None:
        """Note that a replica begins to read its log."""
        self._restoring[replica] = replica.position, time.monotonic()

    def has_read(self, replica: StoreReplica) -> None:
        """Note that a replica has read its log to the end."""
        if (began := self._restoring.pop(replica, None)) is not None:
            position, at = began
            self._rates = self._rates.read(replica.position - position, time.monotonic() - at)

    def forget(self, replica: StoreReplica) -> None:
        """Forget a replica that is closed."""
        self._restoring.pop(replica, None)

    # Files.

    def passed_over(self, found: FoundStore, brought: Brought, peer: str, fault: Fault, reason: str) -> None:
        """Note why a peer's files weren't taken."""
        log.warning("peer passed over", **found.facts, peer=peer, fault=fault.value, reason=reason)
        self._metrics.fault(fault, FaultOutcome.PASSED_OVER)
        brought.passed_over.append(f"{peer}: {fault}: {reason}")

    async def bring(
        self, found: FoundStore, transfers: MutableMapping[str, Transfer], is_wanted: Callable[[], bool]
    ) -> Brought:
        """Bring a store's files if that is cheaper. If so, they are in the store's folder, and nothing of it is open.

        `transfers`: where to show what is fetched, by the name of the store's folder; what was brought stays there.
        `is_wanted`: whether the node shall still have the task.
        """
        brought = Brought()
        spec, changelog = found.spec, found.changelog
        # A replica that differed is compared with the log alone: a peer's may be wrong, too.
        if found.fault is Fault.DIFFERED or not (spec.is_persistent and holds(spec)):
            return brought
        own = changelog.first_offset if found.kept is None else found.kept[1].position
        left = LeftToRead(own, changelog.end_offset)
        if found.fault is Fault.CORRUPT_STORE and (last := self._from.pop(found.path, None)) is not None:
            self._distrusted.add((found.path, last))
        if not is_worth_asking(left, self._rates, self._after_s):
            return brought
        errand = _Errand(found, left, transfers, is_wanted)
        for peer in await self._peers(spec.task_id(found.partition), spec.name, found.partition):
            if (found.path, peer.name) in self._distrusted:
                self.passed_over(found, brought, peer.name, Fault.CORRUPT_STORE, "its files were damaged before")
                continue
            try:
                if not await self._brought_in_goes(peer, errand):
                    break
            except NotWanted:
                return brought  # what was fetched stays: it may be wanted again
            except (TaskFault, OSError) as error:
                self.passed_over(found, brought, peer.name, fault_of(error), str(error))
            else:
                self._from[found.path] = peer.name
                brought.peer, brought.is_anew = peer.name, True
                return brought
        await asyncio.to_thread(shutil.rmtree, found.path / FETCHED_FOLDER, ignore_errors=True)
        brought.is_anew = found.kept is None  # that took its time, and the log has gone on
        return brought

    async def _brought_in_goes(self, peer: Peer, errand: _Errand) -> bool:
        """Bring a store's files as `_brought_from` does. A peer that fails half-way is asked for another checkpoint.

        It may have removed the first one, which was old; of most files the next one has the same.
        """
        found, goes_left = errand.found, _GOES
        while True:
            goes_left -= 1
            try:
                return await self._brought_from(peer, errand)
            except TaskFault as error:
                transfer = errand.transfers.pop(found.path.name, None)
                if not goes_left or transfer is None or error.fault is not Fault.PEER_FAILED:
                    raise
                there = await asyncio.to_thread(_size_in, folder_of(found.path, peer.name))
                if there <= transfer.there:
                    raise
                log.info("a peer is asked again", **found.facts, peer=peer.name, there_bytes=there, reason=str(error))

    async def _brought_from(self, peer: Peer, errand: _Errand) -> bool:
        """Bring a store's files from a peer; return whether they are there. If not, the log is cheaper.

        Raises:
            TaskFault: the peer can't give them, or they can't be used.

        """
        found = errand.found
        manifest, checkpoint = await self._offered(peer, errand)
        # The peer may have read what was written since the log's end was asked for.
        needed = await asyncio.to_thread(self._opener.needed_now, found)
        errand = replace(errand, left=LeftToRead(errand.left.start, needed.changelog.end_offset))
        try:
            start = accepted(manifest, needed, monotonic_and_wall_ms()[1])
        except ManifestUnusable as error:
            raise TaskFault(str(error), error.fault) from error
        if start.position is None:
            raise TaskFault(start.reason, start.fault)
        folder = folder_of(found.path, peer.name)
        there = await asyncio.to_thread(_cleared, folder, manifest.files)
        missing = max(0, manifest.size - there)
        if not is_cheaper(missing, start.position, errand.left, self._rates):
            log.info("no files fetched: the log is faster", **found.facts, peer=peer.name, size_bytes=manifest.size)
            return False
        await asyncio.to_thread(_refuse_full, folder, missing)
        log.info(
            "files are fetched",
            **found.facts,
            peer=peer.name,
            files=len(manifest.files),
            size_bytes=manifest.size,
            there_bytes=there,
            position=start.position,
        )
        fetch = _Fetch(self._plane, peer, checkpoint, manifest, folder, self._silence_ms)
        transfer = Transfer(found.spec.name, found.partition, peer.name, manifest.size, there, there)
        errand.transfers[found.path.name] = transfer
        took_s = await self._fetched(fetch, transfer, errand)
        self._rates = self._rates.fetched(missing, took_s)
        self._metrics.fetched_bytes.labels(found.spec.name).inc(missing)
        await self._adopt(found, manifest, folder)
        log.info("files were fetched", **found.facts, peer=peer.name, size_bytes=missing, took_s=round(took_s, 3))
        return True

    async def _fetched(self, fetch: _Fetch, transfer: Transfer, errand: _Errand) -> float:
        """Return after how many seconds all files are there. Meanwhile `transfer` shows how many bytes are.

        Raises:
            NotWanted: the node shall no longer have the task.
            TaskFault: a file can't be fetched, or all come so slowly that the log is faster.

        """
        found, began = errand.found, time.monotonic()
        where = StorePartition(transfer.store, found.spec.changelog_topic, transfer.partition)
        self._progress.start(where, transfer.there, transfer.size, began)

        def go_on(took_s: float, size: int) -> None:
            moved, transfer.done = size - transfer.done, size
            if (status := self._progress.batch(where, size, moved, time.monotonic())) is not None:
                log.info(
                    "files are still fetched",
                    **found.facts,
                    peer=transfer.peer,
                    done_bytes=transfer.done,
                    missing_bytes=transfer.missing,
                    bytes_per_s=round(status.records_per_s),
                    eta_s=None if status.eta_s is None else round(status.eta_s),
                )
            if not errand.is_wanted():
                raise NotWanted
            if is_too_slow(size - transfer.there, transfer.missing, took_s, errand.left, self._rates):
                slow = f"{size - transfer.there} bytes came within {took_s:.1f} s and {transfer.missing} are missing"
                raise TaskFault(f"{slow}: the log is faster", Fault.PEER_SLOW)

        try:
            await fetch.run(go_on)
        finally:
            self._progress.end(where)
        return time.monotonic() - began

    async def _offered(self, peer: Peer, errand: _Errand) -> tuple[Manifest, str]:
        """Ask a peer for a store; return its manifest, with its time by our clock, and its checkpoint's name."""
        if self._give_none.get(peer.name) == peer.incarnation:
            raise TaskFault(_GIVES_NONE, Fault.PEER_FAILED)
        found = errand.found
        request = peer_service_pb2.OfferStoreRequest(store=found.spec.name, partition=found.partition)
        asked_at_ms, clock = monotonic_and_wall_ms()[1], process_clock()
        try:
            within_s = offered_within_s(errand.left, self._rates)
            call = self._plane.call(peer.address, _OFFER, request.SerializeToString(), within_s)
            answer = await _while(errand.is_wanted, asyncio.ensure_future(call))
            offered = peer_service_pb2.OfferStoreResponse.FromString(answer)
            told = offered.manifest
            files = checked_files([StoredFile(each.name, each.size, each.changed_ns) for each in told.files])
            checkpoint = checked_checkpoint(told.checkpoint)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                self._give_none[peer.name] = peer.incarnation
                if len(self._give_none) > _GIVE_NONE_MAX:
                    self._give_none.pop(next(iter(self._give_none)))  # the oldest: it would be asked once more
                raise TaskFault(_GIVES_NONE, Fault.PEER_FAILED) from error
            failure = from_rpc_error(error)
            raise TaskFault(f"{failure.reason.name}: {failure.message}", Fault.PEER_FAILED) from error
        except DecodeError as error:
            raise TaskFault(f"its answer can't be read: {error}", Fault.PEER_FAILED) from error
        except ManifestUnusable as error:
            raise TaskFault(str(error), error.fault) from error
        checkpoint = by_our_clock(checkpoint, offered.now_ms, asked_at_ms, clock.boot_id, clock.offset_ms)
        return Manifest(told.store, told.partition, told.engine, checkpoint, files), offered.checkpoint

    async def _adopt(self, found: FoundStore, manifest: Manifest, folder: Path) -> None:
        """Have the files take the place of the store's own."""
        await asyncio.to_thread(found.close)
        await asyncio.to_thread(_empty, found.path)
        adopt = files_pb2.EngineAdopt(
            fetched=str(folder),
            path=str(found.path / FOLDER),
            at_end_ms=manifest.checkpoint.at_end_ms,
            boot_id=manifest.checkpoint.boot_id,
            offset_ms=manifest.checkpoint.offset_ms,
        )
        try:
            await asyncio.wrap_future(self._plane.begin(engine_pb2.EngineOrder(adopt=adopt)))
        except StoreUnusable as error:
            await asyncio.to_thread(shutil.rmtree, folder.parent, ignore_errors=True)
            raise TaskFault(str(error), error.fault) from error
        await asyncio.to_thread(shutil.rmtree, folder.parent, ignore_errors=True)


class _Fetch:
    """The fetching of all files of a manifest into a folder."""

    def __init__(
        self, plane: DataPlane, peer: Peer, checkpoint: str, manifest: Manifest, folder: Path, silence_ms: int
    ) -> None:
        self._plane, self._peer, self._checkpoint, self._folder = plane, peer, checkpoint, folder
        self._silence_ms = silence_ms
        # The largest first: the last ones then end together.
        self._left = sorted(manifest.files, key=lambda each: each.size)
        self._has_ended = False

    async def run(self, go_on: Callable[[float, int], None]) -> None:
        """Return once all files are there.

        `go_on(took_s, size)` is called now and then, and raises an error to end it: after so many seconds there are so
        many bytes in the folder.

        Raises:
            TaskFault: a file can't be fetched.

        """
        began = time.monotonic()
        workers = [asyncio.create_task(self._work()) for _ in range(_AT_ONCE)]
        try:
            pending = set(workers)
            while pending:
                done, pending = await asyncio.wait(
                    pending, timeout=_LOOKED_EVERY_S, return_when=asyncio.FIRST_EXCEPTION
                )
                for each in done:
                    each.result()
                if pending:
                    go_on(time.monotonic() - began, await asyncio.to_thread(_size_in, self._folder))
        finally:
            self._left.clear()
            self._has_ended = True
            if not all(each.done() for each in workers):
                end = files_pb2.EngineFetchEnd(directory=str(self._folder))
                await asyncio.wrap_future(self._plane.begin(engine_pb2.EngineOrder(fetch_end=end)))
            # None of them may write to the folder any more.
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        while self._left:
            await self._file(self._left.pop())

    async def _file(self, file: StoredFile) -> None:
        fetch = files_pb2.EngineFetch(
            address=self._peer.address,
            asked=peer_service_pb2.ReadFileRequest(checkpoint=self._checkpoint, file=file.name),
            file=peer_service_pb2.StoredFile(name=file.name, size=file.size, changed_ns=file.changed_ns),
            directory=str(self._folder),
            silence_ms=self._silence_ms,
        )
        tries_left = _TRIES
        while not self._has_ended:
            tries_left -= 1
            try:
                await asyncio.wrap_future(self._plane.begin(engine_pb2.EngineOrder(fetch=fetch)))
            except TaskFault as error:
                # It goes on where it ended; a damaged file begins anew, and is damaged again if its source is.
                if not tries_left or error.fault not in {Fault.PEER_FAILED, Fault.FILE_DAMAGED}:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return


async def _while(is_wanted: Callable[[], bool], work: asyncio.Future[T]) -> T:
    """Return what comes of work.

    Raises:
        NotWanted: it isn't wanted any more, and was cancelled.

    """
    try:
        while not (await asyncio.wait({work}, timeout=_LOOKED_EVERY_S))[0]:
            if not is_wanted():
                raise NotWanted
        return work.result()
    finally:
        work.cancel()


def _empty(path: Path) -> None:
    """Remove what a store's folder has of an older state: another engine's files may be among it."""
    for each in path.iterdir():
        if each.name != FETCHED_FOLDER:
            _remove(each)


def folder_of(path: Path, peer: str) -> Path:
    """Return where a store's folder has files of a peer: those of two are never mixed."""
    return path / FETCHED_FOLDER / hashlib.sha256(peer.encode()).hexdigest()[:32]


def _cleared(folder: Path, files: Sequence[StoredFile]) -> int:
    """Make a peer's folder, remove what isn't of it and these files, and return how many bytes of them are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.parent.iterdir():
        if each != folder:
            _remove(each)
    whole = {(each.name, each.size, each.changed_ns) for each in files}
    parts = {each.part: each.size for each in files}
    there = 0
    for each in folder.iterdir():
        found = each.stat()
        if (each.name, found.st_size, found.st_mtime_ns) in whole:
            there += found.st_size
        elif (most := parts.get(each.name)) is not None:
            there += min(found.st_size, most)
        else:
            _remove(each)
    return there


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def _size_in(folder: Path) -> int:
    """Return the bytes of a folder's files; some may get other names meanwhile."""
    size = 0
    for each in os.scandir(folder):
        try:
            size += each.stat().st_size
        except FileNotFoundError:
            continue
    return size


def _refuse_full(folder: Path, missing: int) -> None:
    """Refuse to fetch what the disk can't take.

    Raises:
        TaskFault: DISK_FULL.

    """
    free = shutil.disk_usage(folder).free
    if free < missing + _SPARE_BYTES:
        raise TaskFault(f"{folder} has {free} bytes free, and {missing} are to be fetched", Fault.DISK_FULL)
