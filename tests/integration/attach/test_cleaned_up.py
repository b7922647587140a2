"""A job that keeps two batches, and makes one after the other: what is read is gone a moment later."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from processor.run.start_check import last_commits
from statehouse.contract.topology import changelog_topic
from statehouse.local.kafka import EmbeddedKafka
from tests.integration.attach import rate_job
from tests.integration.attach.jobs import PROVIDERS
from tests.integration.attach.running import AttachProcess, newest
from tests.integration.attach.served import by_spark
from tests.integration.attach.states import State, as_toml
from tests.integration.processor.support import messages, store_of
from tests.support.polling import poll_until

READS = 8
STATE = State("rate", "places", None)


@pytest.mark.feature("job-keeps-two")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trigger", ["0 seconds", "1 second"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_batches_are_skipped_and_never_the_end(
    kafka: EmbeddedKafka,
    spark: SparkSession,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    provider: str,
    trigger: str,
) -> None:
    application_id, checkpoint = unique_name("shop"), tmp_path / STATE.job
    file = tmp_path / "states.toml"
    file.write_text(as_toml([STATE], str(tmp_path)))
    with (tmp_path / "job.log").open("wb") as log:
        command = [sys.executable, rate_job.__file__, str(checkpoint), provider, trigger]
        job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
    attach = AttachProcess(kafka.bootstrap, application_id, file, tmp_path, "--source-wait-ms", "120000")
    published: set[int] = set()

    def has_read_on() -> bool:
        assert attach.is_running, attach.log_tail()
        assert job.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
        record = last_commits(kafka.bootstrap, application_id, [STATE.store]).get(STATE.store)
        published.update([] if record is None else [record.batch_id])
        return len(published) >= READS

    try:
        poll_until(lambda: (checkpoint / "commits").exists() and newest(checkpoint) > 3, 120, "some batches")
        attach.start()
        poll_until(has_read_on, 240, "reads of many batches")
        assert job.stdin is not None
        job.stdin.close()
        job.wait(60)
        attach.wait_for_all(tmp_path, {STATE.store: STATE.job})
        assert attach.stop() == 0
    finally:
        job.kill()
        job.wait()
        if attach.is_running:
            attach.kill()
    assert not attach.events("query started again"), "nothing has failed"
    served = store_of(messages(kafka.bootstrap, changelog_topic(application_id, STATE.store)))
    assert served.keys() == by_spark(spark, checkpoint, STATE).keys()
