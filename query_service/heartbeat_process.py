"""The process next to a node that writes its heartbeats, and that ends the node when its stop takes too long.

RocksDB's binding holds Python's interpreter lock while it reads and writes. So while a disk stalls, none of the node's
threads runs. This process has no state on disk to wait for. It ends when the node does, in whatever way: its socket
closes then.

To the node it is a socket as standard input: frames come (`frame`), and a line goes for each heartbeat with its error,
empty if it was written; `ENDED` after the last. A further socket has the numbers of the signals that the node was sent,
a byte each: the interpreter writes them immediately, also while it is held.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Self

import structlog
from confluent_kafka import KafkaException, Producer

from query_service.states.heartbeat_repeater import HeartbeatRepeater, StopLimit
from statehouse.contract.membership import counted
from statehouse.errors import ConfigurationError
from statehouse.kafka import clients
from statehouse.kafka.authors import RecordSigning
from statehouse.kafka.renewed import RenewedProducer
from statehouse.observability import logs
from statehouse.runtime.brokers import Brokers, KafkaSecurity, RecordSecurity

log = structlog.get_logger(__name__)

ENDED: Final = "ended"
FLUSH_S: Final = 5.0
_HEAD: Final = struct.Struct("!BI")
_CHUNK: Final = 65_536
_TICKS: Final = 4  # an interval
_TICK_MIN_S: Final = 0.01
# The node has a bound of its own, which says more (`StopDeadline`). We end it only if that could not run.
_AFTER_ITS_OWN_S: Final = 5.0
_STOPPED: Final = frozenset("Tt")
_GONE: Final = frozenset("ZX")


class FrameKind(IntEnum):
    """What a frame from the node says."""

    HEARTBEAT = 1
    """Its content is written."""
    SILENT = 2
    """Nothing may be written."""
    STOPS = 3
    """The node stops: JSON with `seconds` it may take from now, and `left`, what it has left to do."""
    END = 4
    """No more heartbeats. With content, a tombstone is written."""


def frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """Return a frame: a byte for the kind, four for the content's length, the content."""
    return _HEAD.pack(kind, len(content)) + content


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """What the process is started with. No secret is in it: it goes over the command line.

    `timeout_ms`: a heartbeat that waits longer in the client is dropped: it comes too late to keep the node a member.
    `drain_s`, `close_s`: what a stop may take, for handing over and for the rest.
    """

    brokers: Brokers
    client_id: str
    topic: str
    instance_id: str
    interval_s: float
    timeout_ms: int
    drain_s: float
    close_s: float
    log_level: str

    def to_json(self) -> str:
        """Return them as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what `to_json` made a text of."""
        fields: dict[str, Any] = json.loads(text)
        brokers = fields.pop("brokers")
        security, records = KafkaSecurity(**brokers["security"]), RecordSecurity(**brokers["records"])
        return cls(Brokers(brokers["bootstrap"], security, records), **fields)


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the system knows of a process.

    `state`: its letter in /proc; D waits for a disk, T is stopped. Empty where there is no /proc. `pending`: the
    signals that it was sent and could not take yet, as while it waits for a disk.
    """

    state: str = ""
    pending: frozenset[int] = frozenset()

    @property
    def is_ending(self) -> bool:
        """Whether it has ended, or is killed."""
        return self.state in _GONE or signal.SIGKILL in self.pending

    @classmethod
    def of(cls, pid: int) -> Self:
        """Ask the system."""
        try:
            lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return cls()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        waiting = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
        return cls(fields["State"].split()[0], frozenset(each for each in signals if waiting >> (each - 1) & 1))


class HeartbeatWriter:
    """Writes what the node says, and goes on while it says nothing. `node` is the socket to it, `pid` its process."""

    def __init__(self, options: HeartbeatOptions, node: socket.socket, pid: int) -> None:
        self._options, self._node, self._pid = options, node, pid
        self._repeats, self._bound = HeartbeatRepeater(options.interval_s), StopLimit()
        self._was_silent = False
        self._written = 0
        self._signing = RecordSigning(options.brokers)
        self._producer = RenewedProducer(self._new_producer, lambda error: self._tell("" if error is None else error))

    def take(self, said: FrameKind, content: bytes, now: float) -> None:
        """Take a frame."""
        if said is FrameKind.HEARTBEAT:
            self._repeats.say(content, now)
        elif said is FrameKind.SILENT:
            self._repeats.say(None, now)
        elif said is FrameKind.STOPS:
            stop = json.loads(content)
            self._bound.left = stop["left"]
            self._bound.ask(now, stop["seconds"])
        else:
            self._repeats.say(None, now)
            self._end(leaves=bool(content))

    def signalled(self, number: int, now: float) -> None:
        """Take the number of a signal that the node was sent."""
        drain_s = self._options.drain_s if number == signal.SIGTERM else 0.0
        if number in {signal.SIGTERM, signal.SIGINT}:
            self._bound.ask(now, drain_s + self._options.close_s)

    def tick(self, facts: ProcessFacts, now: float) -> None:
        """Write the heartbeat that is due, and end the node if its stop takes too long."""
        for number in facts.pending:
            self.signalled(number, now)
        value = self._repeats.take(now, may_repeat=facts.state not in _STOPPED)
        if value is not None:
            self._written += 1  # readers take a number that they know for the same heartbeat, read twice
            self._write(counted(value, self._written))
        if self._repeats.has_fallen_silent(now) and not self._was_silent:
            log.error("the node does not run, and falls silent: it loses its tasks", state=facts.state)
        self._was_silent = self._repeats.has_fallen_silent(now)
        if self._bound.is_over(now - _AFTER_ITS_OWN_S):
            log.error("the stop takes too long, the process is killed", left=self._bound.left, state=facts.state)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            sys.exit(1)

    def _write(self, value: bytes | None) -> None:
        try:
            topic, key = self._options.topic, self._options.instance_id.encode()
            signed = self._signing.options(topic, key, value)
            self._producer.produce(topic, key=key, value=value, partition=0, **signed)
        except (BufferError, KafkaException) as error:  # the next heartbeat says the same and more
            self._tell(error)

    def _end(self, *, leaves: bool) -> None:
        if leaves:
            self._write(None)  # if that fails, the session times out
        with contextlib.suppress(KafkaException):  # of brokers that refuse us altogether; why the node ends is known
            self._producer.flush(FLUSH_S)
        self._tell(ENDED)

    def _tell(self, line: object) -> None:
        # A node that is blocked reads nothing: what finds no room is dropped.
        with contextlib.suppress(OSError):
            self._node.send(str(line).replace("\n", " ").encode() + b"\n", socket.MSG_DONTWAIT)

    def _new_producer(self) -> Producer:
        timeout: dict[str, str | float | bool] = {"message.timeout.ms": self._options.timeout_ms}
        return clients.producer(self._options.brokers, self._options.client_id, **timeout)


def whole_frames(received: bytearray) -> Iterator[tuple[FrameKind, bytes]]:
    """Yield the frames that have arrived whole, and remove them from `received`."""
    while len(received) >= _HEAD.size:
        kind, length = _HEAD.unpack_from(received)
        end = _HEAD.size + length
        if len(received) < end:
            return
        content = bytes(received[_HEAD.size : end])
        del received[:end]
        yield FrameKind(kind), content


def serve(writer: HeartbeatWriter, node: socket.socket, signals: socket.socket, pid: int, tick_s: float) -> None:
    """Write until the node is gone."""
    received = bytearray()
    while True:
        ready, _, _ = select.select([node, signals], [], [], tick_s)
        now = time.monotonic()
        if node in ready:
            if not (chunk := node.recv(_CHUNK)):
                return
            received += chunk
            for said, content in whole_frames(received):
                writer.take(said, content, now)
        if signals in ready:
            for number in signals.recv(_CHUNK):
                writer.signalled(number, now)
        facts = ProcessFacts.of(pid)
        if facts.is_ending:  # its threads may still wait for a disk, and keep the socket open
            return
        writer.tick(facts, now)


def main() -> int:
    """Serve the node that has started this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the node, with which we end
        signal.signal(number, signal.SIG_IGN)
    options, pid = HeartbeatOptions.from_json(sys.argv[1]), os.getppid()
    logs.configure(options.log_level)
    with socket.socket(fileno=sys.stdin.fileno()) as node, socket.socket(fileno=int(sys.argv[2])) as signals:
        try:
            writer = HeartbeatWriter(options, node, pid)
        except ConfigurationError as error:
            log.error("no heartbeats can be written", reason=str(error))  # noqa: TRY400 - a person can act on it
            return 1
        with contextlib.suppress(ConnectionError):
            serve(writer, node, signals, pid, max(_TICK_MIN_S, options.interval_s / _TICKS))
    return 0
