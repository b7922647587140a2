"""The process next to a node that writes its heartbeats, and that ends the node when its stop takes too long.

RocksDB's binding holds Python's interpreter lock while it reads and writes. So while a disk stalls, none of the node's
threads runs. This process has no state on disk to wait for. It ends when the node does, in whatever way: its socket
closes then.

It is forked from the node before that has threads: what the node has imported is there, and takes memory once.

Between them is a socket: frames come (`frame`), the first one with where to write, and a line goes for each heartbeat
with its error, empty if it was written; `ENDED` after the last. A further socket has the numbers of the signals that
the node was sent, a byte each: the interpreter writes them immediately, also while it is held.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
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
from statehouse.runtime.brokers import Brokers, KafkaSecurity, RecordSecurity

log = structlog.get_logger(__name__)

ENDED: Final = "ended"
FLUSH_S: Final = 5.0
_HEAD: Final = struct.Struct("!BI")
_CHUNK: Final = 65_536
_END_S: Final = 2.0
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
    BEGIN = 5
    """The first frame: `HeartbeatOptions` as JSON."""


def frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """Return a frame: a byte for the kind, four for the content's length, the content."""
    return _HEAD.pack(kind, len(content)) + content


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """What and where to write.

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


class HeartbeatProcess:
    """The process as the node sees it. It waits for `HeartbeatOptions`; close it to end it.

    Make it before the node has threads: they aren't there after a fork, but what they hold is.
    """

    def __init__(self) -> None:
        self.socket, its = socket.socketpair()
        self.signals, its_signals = socket.socketpair()
        self.signals.setblocking(False)
        given = (its, its_signals, os.getpid(), (self.socket, self.signals))
        with its, its_signals:
            self.process = multiprocessing.get_context("fork").Process(target=_run, args=given, daemon=True)
            self.process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process, for which it has two seconds."""
        self.socket.close()
        self.signals.close()
        self.process.join(_END_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def serve(node: socket.socket, signals: socket.socket, pid: int) -> None:
    """Write what the node says, until the node is gone."""
    received, tick_s = bytearray(), None
    writer: HeartbeatWriter | None = None
    while True:
        ready, _, _ = select.select([node, signals], [], [], tick_s)
        now = time.monotonic()
        if node in ready:
            if not (chunk := node.recv(_CHUNK)):
                return
            received += chunk
            for said, content in whole_frames(received):
                if writer is None:
                    options = HeartbeatOptions.from_json(content.decode())
                    writer, tick_s = HeartbeatWriter(options, node, pid), max(_TICK_MIN_S, options.interval_s / _TICKS)
                else:
                    writer.take(said, content, now)
        numbers = signals.recv(_CHUNK) if signals in ready else b""
        facts = ProcessFacts.of(pid)
        if facts.is_ending:  # its threads may still wait for a disk, and keep the socket open
            return
        if writer is not None:
            for number in numbers:
                writer.signalled(number, now)
            writer.tick(facts, now)


def _run(node: socket.socket, signals: socket.socket, pid: int, of_node: tuple[socket.socket, ...]) -> None:
    """Serve the node that has forked this process, and end. `of_node`: its ends of the sockets."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the node, with which we end
        signal.signal(number, signal.SIG_IGN)
    os.setpgid(0, 0)  # a terminal's Ctrl-C is for the node
    for each in of_node:
        each.close()
    status = 0
    try:
        with contextlib.suppress(ConnectionError):
            serve(node, signals, pid)
    except ConfigurationError as error:
        log.error("no heartbeats can be written", reason=str(error))  # noqa: TRY400 - a person can act on it
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # immediately: what the client still holds is of a node that is gone
