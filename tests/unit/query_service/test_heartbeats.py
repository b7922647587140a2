"""Heartbeats: what the event loop says, and the process that writes it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from query_service.heartbeat_process import (
    FrameKind,
    HeartbeatOptions,
    HeartbeatProcess,
    HeartbeatWriter,
    ProcessFacts,
    frame,
    whole_frames,
)
from query_service.heartbeats import Heartbeats, HeartbeatsEnded
from statehouse.contract.membership import Member, counted, decode_member, encode_member
from statehouse.runtime.brokers import Brokers, KafkaSecurity
from tests.support.polling import poll_until, poll_until_async

OPTIONS = HeartbeatOptions(Brokers("127.0.0.1:1"), "test", "members", "n", 1.0, 1_000, drain_s=10.0, close_s=5.0)
RUNS = ProcessFacts("S")
VALUE = encode_member(Member("n", "1st", "h", 1, heartbeat=41))[1]


@pytest.fixture
def node() -> Iterator[socket.socket]:
    """The node's end of the socket."""
    ours, its = socket.socketpair()
    with ours, its:
        ours.settimeout(10)
        yield ours


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for the node."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def writer(sleeper: subprocess.Popen[bytes]) -> Iterator[HeartbeatWriter]:
    node, its = socket.socketpair()
    with node, its:
        writer = HeartbeatWriter(OPTIONS, its, sleeper.pid)
        writer._producer = Mock()
        yield writer


def written(writer: HeartbeatWriter) -> list[int]:
    """Return the numbers of the heartbeats that it has written."""
    calls = writer._producer.produce.call_args_list  # type: ignore[attr-defined]
    return [decode_member(b"n", call.kwargs["value"], 0, 0).heartbeat for call in calls]


def test_options_and_frames_come_back() -> None:
    secured = Brokers("a:1,b:2", KafkaSecurity("sasl_ssl", "PLAIN", credentials="/a/file"))
    options = HeartbeatOptions(secured, "test", "members", "n", 0.5, 1_000, 10.0, 5.0)
    assert HeartbeatOptions.from_json(options.to_json()) == options
    sent = [(FrameKind.HEARTBEAT, b"x" * 300), (FrameKind.SILENT, b""), (FrameKind.END, b"leaves")]
    arriving, got = bytearray(), []
    for byte in b"".join(frame(*each) for each in sent):
        arriving.append(byte)
        got += list(whole_frames(arriving))
    assert got == sent
    assert not arriving


def test_a_heartbeat_gets_another_number_and_stays_the_same() -> None:
    member = decode_member(b"n", VALUE, 0, 0)
    assert decode_member(b"n", counted(VALUE, 7), 0, 0) == decode_member(b"n", VALUE, 0, 0).__class__(
        **{**{name: getattr(member, name) for name in member.__slots__}, "heartbeat": 7}
    )


def test_repeats_have_numbers_of_their_own(writer: HeartbeatWriter) -> None:
    writer.take(FrameKind.HEARTBEAT, VALUE, 0.0)
    for now in (0.0, 1.5, 3.0):
        writer.tick(RUNS, now)
    writer.take(FrameKind.HEARTBEAT, VALUE, 3.5)
    writer.tick(RUNS, 3.5)
    assert written(writer) == [1, 2, 3, 4]


def test_a_frozen_node_is_not_repeated(writer: HeartbeatWriter) -> None:
    writer.take(FrameKind.HEARTBEAT, VALUE, 0.0)
    for now in (0.0, 1.5, 3.0):
        writer.tick(ProcessFacts("T"), now)
    assert written(writer) == [1]


def test_a_node_that_never_comes_back_falls_silent_and_that_is_logged_once(writer: HeartbeatWriter) -> None:
    writer.take(FrameKind.HEARTBEAT, VALUE, 0.0)
    with capture_logs() as logged:
        for now in range(0, 200, 2):
            writer.tick(ProcessFacts("D"), float(now))
    assert len(written(writer)) == 61
    assert [event["event"] for event in logged] == ["the node does not run, and falls silent: it loses its tasks"]


@pytest.mark.parametrize(("number", "bound_s"), [(signal.SIGTERM, 15), (signal.SIGINT, 5)])
@pytest.mark.parametrize("is_pending", [True, False])
def test_a_node_that_does_not_hear_its_signal_is_killed(
    writer: HeartbeatWriter, sleeper: subprocess.Popen[bytes], number: int, bound_s: float, *, is_pending: bool
) -> None:
    facts = ProcessFacts("D", frozenset({number}) if is_pending else frozenset())
    if not is_pending:
        writer.signalled(number, 0.0)
    writer.tick(facts, 0.0)
    writer.tick(facts, bound_s + 4.9)
    assert sleeper.poll() is None
    with capture_logs() as logged, pytest.raises(SystemExit):
        writer.tick(facts, bound_s + 5.1)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert logged[0]["left"] == "all of it: the node did not begin to stop"


def test_a_stop_that_hangs_is_killed_and_what_it_left_is_told(
    writer: HeartbeatWriter, sleeper: subprocess.Popen[bytes]
) -> None:
    for left in ("calls", "stores"):
        writer.take(FrameKind.STOPS, json.dumps({"seconds": 1.0, "left": left}).encode(), 0.0)
    with capture_logs() as logged, pytest.raises(SystemExit):
        writer.tick(RUNS, 6.1)
    assert sleeper.wait(10) == -signal.SIGKILL
    assert logged[0]["left"] == "stores"


def test_pending_signals_and_a_stop_are_seen() -> None:
    block = "import signal, sys, time; signal.pthread_sigmask(0, {15}); print(flush=True); time.sleep(600)"
    with subprocess.Popen(["python3", "-c", block], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ProcessFacts.of(process.pid).pending == frozenset()
        process.send_signal(signal.SIGTERM)
        poll_until(lambda: ProcessFacts.of(process.pid).pending == {signal.SIGTERM}, 10, "the signal to wait")
        process.send_signal(signal.SIGSTOP)
        poll_until(lambda: ProcessFacts.of(process.pid).state == "T", 10, "the process to stop")
        process.kill()
    assert ProcessFacts.of(process.pid) == ProcessFacts()
    assert ProcessFacts("Z").is_ending
    assert ProcessFacts("D", frozenset({signal.SIGKILL})).is_ending
    assert not ProcessFacts("D", frozenset({signal.SIGTERM})).is_ending


@pytest.fixture
def process() -> Iterator[HeartbeatProcess]:
    with HeartbeatProcess() as process:
        yield process


def heartbeats_of(
    member: Callable[[], Member | None],
    on_failure: Callable[[], None] = lambda: None,
    process: HeartbeatProcess | None = None,
) -> Heartbeats:
    return Heartbeats(process or Mock(), OPTIONS, member, on_failure)


async def test_it_is_known_for_how_long_no_heartbeat_has_arrived() -> None:
    times = [100.0]
    heartbeats = Heartbeats(Mock(), OPTIONS, lambda: None, lambda: None, lambda: times[-1])
    assert heartbeats.failing_s is None
    known: list[float | None] = []
    for at, line in ((101.0, ""), (104.0, ""), (110.0, "no broker"), (112.0, "no broker"), (113.0, "")):
        times.append(at)
        heartbeats._note(line)
        known.append(heartbeats.failing_s)
    assert known == [None, None, 6.0, 8.0, None], "since the last one that arrived"


async def test_heartbeats_that_fail_are_counted_and_logged_once() -> None:
    failures: list[int] = []
    heartbeats = heartbeats_of(lambda: None, lambda: failures.append(1))
    heartbeats._reader = asyncio.StreamReader()
    heartbeats._reader.feed_data(b"\nno broker\nno broker\n\n")
    heartbeats._reader.feed_eof()
    with capture_logs() as logged, pytest.raises(HeartbeatsEnded):
        await heartbeats.hear_forever()
    assert failures == [1, 1]
    assert [event["log_level"] for event in logged] == ["warning", "info"]
    assert (logged[0]["error"], logged[1]["failed"]) == ("no broker", 2)


async def test_a_process_without_a_broker_says_so_and_ends_with_the_node(process: HeartbeatProcess) -> None:
    failures: list[int] = []
    heartbeats = heartbeats_of(lambda: Member("n", "1st", "h", 1), lambda: failures.append(1), process)
    await heartbeats.start()
    work = [asyncio.create_task(each) for each in (heartbeats.write_forever(), heartbeats.hear_forever())]
    await poll_until_async(lambda: failures, 30, "a heartbeat that can't be written")
    for each in work:
        each.cancel()
    await asyncio.wait(work)
    await heartbeats.close()
    assert process.process.exitcode == 0


async def test_a_heartbeat_that_must_arrive_is_waited_for_but_not_for_ever() -> None:
    asked: list[int] = []

    def member() -> None:
        asked.append(1)

    heartbeats = heartbeats_of(member)
    heartbeats._reader = asyncio.StreamReader()
    work = [asyncio.create_task(each) for each in (heartbeats.write_forever(), heartbeats.hear_forever())]
    await poll_until_async(lambda: asked, 30, "the first heartbeat")
    waiting = asyncio.create_task(heartbeats.write(30.0))
    await poll_until_async(lambda: len(asked) == 2, 30, "the next one, immediately")
    assert not waiting.done()
    heartbeats._reader.feed_data(b"\n")
    await waiting
    await heartbeats.write(0.01)
    for each in work:
        each.cancel()
    await asyncio.wait(work)


async def test_a_process_that_is_killed_is_noticed(process: HeartbeatProcess) -> None:
    heartbeats = heartbeats_of(lambda: None, process=process)
    await heartbeats.start()
    process.process.kill()
    with pytest.raises(HeartbeatsEnded):
        await heartbeats.hear_forever()
    await heartbeats.end(leaves=True)
    await heartbeats.close()


async def test_a_process_that_takes_nothing_costs_no_memory(process: HeartbeatProcess) -> None:
    failures: list[int] = []
    large = Member("n", "1st", "h", 1, version="v" * 1_000_000)
    heartbeats = heartbeats_of(lambda: large, lambda: failures.append(1), process)
    await heartbeats.start()
    connection = heartbeats._writer
    assert connection is not None
    assert process.process.pid is not None
    os.kill(process.process.pid, signal.SIGSTOP)
    writing = asyncio.create_task(heartbeats.write_forever())

    def is_full() -> bool:
        heartbeats.due()
        return bool(failures)

    await poll_until_async(is_full, 30, "a heartbeat that finds no room")
    assert connection.transport.get_write_buffer_size() < 5_000_000
    writing.cancel()
    await asyncio.wait([writing])
    await heartbeats.close()
    assert process.process.exitcode == -signal.SIGKILL
