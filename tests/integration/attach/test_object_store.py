"""A job that keeps its checkpoint in an object store: S3's API, by Spark's own file system for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx
import pytest

from statehouse.contract.topology import changelog_topic
from statehouse.local.jars import waiting_lock
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import LOOPBACK, free_port
from tests.integration.attach.events import made_events, write_events
from tests.integration.attach.running import AttachProcess, Jobs
from tests.integration.attach.states import as_toml, states_of
from tests.integration.attach.test_attached_jobs import check
from tests.integration.processor.support import messages, store_of
from tests.support.polling import poll_until
from tests.support.tools import TOOLS

MOTO: Final = "5.2.5"
# The version of the Hadoop that this Spark has.
FILE_SYSTEM: Final = "org.apache.hadoop:hadoop-aws:3.5.0"
BATCHES, PER_BATCH = 4, 20


@contextmanager
def object_store(log: Path) -> Iterator[str]:
    """A server of S3's API with a bucket, `jobs`; yields its address."""
    folder = TOOLS / f"moto-{MOTO}"
    with waiting_lock(TOOLS / f"{folder.name}.lock"):
        if not (folder / ".ready").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, f"moto[server]=={MOTO}"], check=True, timeout=600)
            (folder / ".ready").touch()
    port = free_port()
    with log.open("wb") as output:
        command = [str(folder / "bin" / "moto_server"), "-H", LOOPBACK, "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    address = f"http://{LOOPBACK}:{port}"

    def has_bucket() -> bool:
        assert server.poll() is None, log.read_text()[-2000:]
        try:
            return httpx.put(f"{address}/jobs", timeout=5.0).is_success
        except httpx.TransportError:
            return False

    try:
        poll_until(has_bucket, 60, "a bucket")
        yield address
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("provider", ["hdfs", "changelog"])
def test_a_checkpoint_in_an_object_store(
    kafka: EmbeddedKafka,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    provider: str,
) -> None:
    application_id, batches = unique_name("shop"), made_events(BATCHES, PER_BATCH)
    states = states_of(provider, {"two_columns", "means", "structs"})
    with object_store(tmp_path / "moto.log") as address:
        conf = {
            "spark.jars.packages": FILE_SYSTEM,
            "spark.hadoop.fs.s3a.endpoint": address,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": "of-tests",
            "spark.hadoop.fs.s3a.secret.key": "of-tests",
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", " ".join([*options, "pyspark-shell"]))
        jobs = Jobs(
            tmp_path / "events",
            "s3a://jobs/checkpoints",
            provider,
            [each.job for each in states],
            tmp_path / "jobs.log",
        )
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")
        file = tmp_path / "states.toml"
        file.write_text(as_toml(states, "s3a://jobs/checkpoints"))
        own = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        attach = AttachProcess(kafka.bootstrap, application_id, file, tmp_path, "--source-wait-ms", "900000", *own)
        try:
            attach.start()
            write_events(tmp_path / "events", batches[:2])
            jobs.run()
            write_events(tmp_path / "events", batches[2:], 2)
            jobs.run()
            attach.wait_for_batches({each.store: BATCHES - 1 for each in states}, 600)
            assert attach.stop() == 0
        finally:
            jobs.stop()
            if attach.is_running:
                attach.kill()
    for state in states:
        assert state.model is not None
        records = store_of(messages(kafka.bootstrap, changelog_topic(application_id, state.store)))
        found = {key: json.loads(value) for key, value in records.items()}
        check(state.store, found, state.model(batches), "model")
