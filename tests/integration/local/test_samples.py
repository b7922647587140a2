"""The program that feeds sample data: topics with their settings, records in order, and what is wrong with a sample."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from statehouse.kafka.clients import admin
from statehouse.kafka.topics import partition_counts, topic_settings
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import read_all
from tests.support.statehouse import ROOT

SAMPLE = """
from statehouse.local.samples import Sample
TOPICS = {{"{rows}": {{"cleanup.policy": "compact"}}, "{events}": {{}}}}
RECORDS = [Sample("{rows}", "a", "1"), Sample("{rows}", "a", None), Sample("{events}", None, b"\\xff", 1_000)]
"""


def feed(folder: Path, bootstrap: str, module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statehouse.local.samples", module, "--bootstrap", bootstrap, "--partitions", "2"]
    return subprocess.run(
        command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60
    )


def test_topics_are_made_and_records_fed(kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path):
    rows, events = unique_name("rows"), unique_name("events")
    (tmp_path / "shop_sample.py").write_text(SAMPLE.format(rows=rows, events=events))
    done = feed(tmp_path, kafka.bootstrap, "shop_sample")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"3 records to {rows}, {events}\n"
    client = admin(kafka.bootstrap, "tests")
    assert partition_counts(client, [rows, events]) == {rows: 2, events: 2}
    assert topic_settings(client, rows)["cleanup.policy"] == "compact"
    assert read_all(kafka.bootstrap, rows, range(2)) == [(b"a", b"1"), (b"a", None)]
    assert read_all(kafka.bootstrap, events, range(2)) == [(None, b"\xff")]
    assert feed(tmp_path, kafka.bootstrap, "shop_sample").returncode == 0, "topics that are there stay"


@pytest.mark.parametrize(
    ("text", "said"),
    [("TOPICS = {}", "it lacks RECORDS"), ("import nowhere_at_all", "module nowhere_at_all not found")],
)
def test_a_module_that_is_no_sample_says_why(tmp_path: Path, text: str, said: str):
    (tmp_path / "no_sample.py").write_text(text)
    done = feed(tmp_path, "127.0.0.1:1", "no_sample")
    assert done.returncode != 0
    assert said in done.stderr
