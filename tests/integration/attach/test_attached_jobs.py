"""Strangers' jobs are served as Spark has their state: every key and every value, at three doors."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from pyspark.sql import SparkSession

from processor.attach.checkpoint import AttachedCheckpoint
from statehouse.client import Client, KeyColumns
from statehouse.errors import ConfigurationError
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.attach import models
from tests.integration.attach.events import made_events, write_events
from tests.integration.attach.jobs import PROVIDERS
from tests.integration.attach.models import Batches, Entries
from tests.integration.attach.running import AttachProcess, Jobs, newest
from tests.integration.attach.served import by_http, by_key, by_spark, scanned
from tests.integration.attach.states import State, as_toml, states_of
from tests.interop.spark_versions.installed import SparkInstall, installed
from tests.support.fleet import Servers
from tests.support.polling import poll_until
from tests.support.web import web_server

BATCHES = 5
PER_BATCH = 20


def is_like(found: Any, expected: Any) -> bool:
    """Equal, but for the last digits of a statistic, and where several values are right."""
    if isinstance(expected, set):
        return found in expected
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(is_like(found[k], v) for k, v in expected.items())
        )
    if isinstance(expected, float):
        return isinstance(found, float) and math.isclose(found, expected, rel_tol=1e-12)
    return type(found) is type(expected) and bool(found == expected)


def check(store: str, found: Entries, expected: Entries, what: str) -> None:
    assert found.keys() == expected.keys(), f"{store}, {what}: {found.keys() ^ expected.keys()}"
    for key, value in expected.items():
        assert is_like(found[key], value), f"{store}, {what}, {key!r}: {found[key]} instead of {value}"


def play(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    application_id: str,
    directory: Path,
    provider: str,
    states: list[State],
    version: SparkInstall | None = None,
    *,
    is_killed: bool = False,
) -> None:
    """Run the jobs twice, as cron does, with `attach` next to them; then compare all there is.

    `is_killed`: the second run ends by SIGKILL in its middle, and is begun again.
    """
    batches = made_events(BATCHES, PER_BATCH)
    events, checkpoints = directory / "events", directory / "checkpoints"
    names = list(dict.fromkeys(each.job for each in states))
    file = directory / "states.toml"
    file.write_text(as_toml(states, str(checkpoints)))
    write_events(events, batches[:-2])
    started = partial(Jobs, events, checkpoints, provider, names, directory / "jobs.log", version)
    jobs = started()
    attach = AttachProcess(kafka.bootstrap, application_id, file, directory, "--source-wait-ms", "900000")
    with Servers(kafka.bootstrap, application_id, directory) as servers:
        servers.node("n1")
        router = servers.router()
        try:
            attach.start()  # it waits for the checkpoints
            jobs.run()
            write_events(events, batches[-2:], BATCHES - 2)
            if is_killed:
                jobs.begin()
                middle = checkpoints / names[len(names) // 2]
                poll_until(lambda: newest(middle) >= BATCHES - 2, 300, "the middle of the second run")
                jobs.kill()
                jobs = started()
            jobs.run()
            attach.wait_for_all(checkpoints, {each.store: each.job for each in states})
            with Client(router.target) as client, web_server(router.target) as http:
                poll_until(lambda: client.fleet().tasks and is_served(client, states), 60, "the stores to be served")
                wrong = [compared(client, http, spark, checkpoints, state, batches) for state in states]
                assert not any(wrong), "\n".join(filter(None, wrong))
                ask_by_columns(router.target, client, http, batches)
            assert attach.stop() == 0
        finally:
            jobs.stop()
            if attach.is_running:
                attach.kill()


def ask_by_columns(router: str, client: Client, http: str, batches: Batches) -> None:
    """Ask for a key of several columns by its columns: in Python, on the command line, and by HTTP."""
    event = next(each for each in models.everything(batches) if each.user == "zoë")
    expected = models.two_columns(batches)[models.key_of(user=event.user, at=event.at)]
    berlin = event.at.astimezone(timezone(timedelta(hours=1)))
    assert client.get("two-columns", KeyColumns(at=berlin, user=event.user)).value == expected
    columns = [f"--key-column=at={berlin.isoformat()}", f"--key-column=user={event.user}"]
    shown = json.loads(command("get", "two-columns", *columns, "--router", router, "-o", "json"))
    assert shown["value"] == expected
    path = f"/v1/stores/two-columns/keys/user={event.user}&at={event.at.isoformat()}"
    answer = httpx.get(f"http://{http}{quote(path)}", params={"columns": "true"})
    assert answer.json()["value"] == expected, answer.text


def command(*words: str) -> str:
    """Run a command of ours; return what it prints."""
    program = [sys.executable, "-m", "statehouse.cli", *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def is_served(client: Client, states: list[State]) -> bool:
    for state in states:
        read = {"window": client.scan_windows, "session": client.scan_sessions}.get(
            state.options.get("as", ""), client.scan
        )
        next(iter(read(state.store, raw=True)), None)
    return True


def compared(client: Client, http: str, spark: SparkSession, checkpoints: Path, state: State, batches: Batches) -> str:
    """Return what is wrong with a store; nothing if nothing is."""
    try:
        compare(client, http, spark, checkpoints, state, batches)
    except AssertionError as failure:
        return f"{state.store}: {failure}"[:2_000]
    return ""


def compare(client: Client, http: str, spark: SparkSession, checkpoints: Path, state: State, batches: Batches) -> None:
    if state.options.get("as"):
        compare_times(client, state, batches)
        return
    found = scanned(client, state.store)
    assert found, f"{state.store} is empty"
    if state.model is not None:
        check(state.store, found, state.model(batches), "model")
    if state.as_spark:
        check(state.store, found, by_spark(spark, checkpoints / state.job, state), "Spark's reader")
    keys = list(found)
    check(state.store, by_key(client, state.store, keys), found, "by key")
    check(state.store, by_http(http, state.store, keys), found, "by HTTP")


def compare_times(client: Client, state: State, batches: Batches) -> None:
    """Windows and sessions are found by key and time."""
    if state.options["as"] == "window":
        for (user, start), count in models.windows(batches).items():
            if user is not None:
                at_ms = int(start.timestamp() * 1000)
                found = list(client.fetch_windows(state.store, models.form(user), from_ms=at_ms, to_ms=at_ms))
                assert [each.value for each in found] == [{"count": count}], f"{user} {start}: {found}"
        return
    sessions = models.sessions(batches)
    users = {value["user"] for value in sessions.values() if value["user"] is not None}
    for user in users:
        expected = sorted(v["count"] for v in sessions.values() if v["user"] == user)
        found: list[Any] = [each.value for each in client.fetch_sessions(state.store, user)]
        assert sorted(value["count"] for value in found) == expected


@pytest.mark.feature("type-key-value")
@pytest.mark.feature("one-attach-serves")
@pytest.mark.feature("keys-several-columns")
@pytest.mark.timeout(240)
def test_two_jobs_of_strangers(
    kafka: EmbeddedKafka, spark: SparkSession, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """Times of microseconds, bytes that are no text, nulls; the long test has all the others."""
    states = states_of("changelog", {"two_columns", "latin"})
    play(kafka, spark, unique_name("shop"), tmp_path, "changelog", states)


@pytest.mark.feature("type-key-value")
@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_all_jobs_of_strangers(
    kafka: EmbeddedKafka, spark: SparkSession, unique_name: Callable[[str], str], tmp_path: Path, provider: str
) -> None:
    play(kafka, spark, unique_name("shop"), tmp_path, provider, states_of(provider), is_killed=True)
    listed = command("attach", "--list", str(tmp_path / "checkpoints" / "two_columns"), "-o", "json")
    assert json.loads(listed)[0]["key"] == "user string, at timestamp"


@pytest.mark.feature("isn-t-checkpoint")
@pytest.mark.long
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("provider", ["hdfs", "changelog"])
@pytest.mark.parametrize("minor", ["4.1", "4.0"])
def test_checkpoints_of_older_versions_of_spark(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    minor: str,
    provider: str,
) -> None:
    play(kafka, spark, unique_name("shop"), tmp_path, provider, states_without_python(provider), installed(minor))


def states_without_python(provider: str) -> list[State]:
    """Older versions of Spark don't run functions of Python's with the tests' pandas."""
    jobs = {"two_columns", "latin", "sums", "key_types", "structs", "window_update", "sessions", "dedup", "join"}
    return states_of(provider, jobs | {"dedup_watermark", "two_operators", "foreach_batch"})


@pytest.mark.feature("isn-t-checkpoint")
@pytest.mark.long
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("provider", ["hdfs", "changelog"])
def test_a_checkpoint_of_spark_3_is_refused_until_a_batch_of_spark_4(
    kafka: EmbeddedKafka, spark: SparkSession, unique_name: Callable[[str], str], tmp_path: Path, provider: str
) -> None:
    batches, states = made_events(BATCHES, PER_BATCH), states_without_python(provider)
    write_events(tmp_path / "events", batches[:1])
    names = list(dict.fromkeys(each.job for each in states))
    jobs = Jobs(tmp_path / "events", tmp_path / "checkpoints", provider, names, tmp_path / "old.log", installed("3.5"))
    jobs.run()
    jobs.stop()
    with pytest.raises(ConfigurationError, match="written by Spark 3"):
        AttachedCheckpoint(spark, str(tmp_path / "checkpoints" / "sums")).wait_for_a_batch(0)
    write_events(tmp_path / "events", batches[1:2], 1)
    upgraded = Jobs(tmp_path / "events", tmp_path / "checkpoints", provider, names, tmp_path / "upgraded.log")
    upgraded.run()
    upgraded.stop()
    play(kafka, spark, unique_name("shop"), tmp_path, provider, states)
