"""`bench.truth` finds what is wrong with answers: with a stand-in for Spark in seconds, with all of it at length."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records import create_topic
from bench.shape import Side
from bench.sides.servers import ROOT
from bench.truth import SOURCE
from bench.truth.play import Play
from bench.truth.schedule import Blow, Fault
from bench.truth.systems.redis import Redis
from bench.truth.trading import Trading
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

_PARTITIONS = 2
_LASTS_S = {Fault.CUT: 6.0, Fault.FREEZE: 3.0}


class FilledByHalves(Redis):
    """Redis, filled by `tests.integration.bench.filler`."""

    def __init__(self, bootstrap: str, link: FaultProxy, port: int, directory: Path) -> None:
        super().__init__(Side.REDIS, bootstrap, link, port, directory)
        arguments = [bootstrap, str(link.port), str(_PARTITIONS)]
        self._filler = ManagedProcess(
            "filler",
            [sys.executable, "-m", "tests.integration.bench.filler", *arguments],
            directory / "logs" / "filler.log",
            cwd=ROOT,
        )

    @property
    def writer(self) -> ManagedProcess:
        """See System."""
        return self._filler


@pytest.mark.timeout(180)
def test_torn_and_old_answers_and_failed_lookups_are_counted(tmp_path: Path) -> None:
    port = free_port()
    with EmbeddedKafka(tmp_path / "broker") as kafka, FaultProxy(port) as link:
        create_topic(kafka.bootstrap, SOURCE, _PARTITIONS, {})
        system = FilledByHalves(kafka.bootstrap, link, port, tmp_path)
        trading = Trading(kafka.bootstrap, _PARTITIONS, seed=1)
        play = Play(system, trading, 1, lambda fault, _seed: [Blow(fault, 0.5, _LASTS_S[fault], 0, 0.0)])
        try:
            play.open()
            cut = play.part(Fault.CUT)
            frozen = play.part(Fault.FREEZE)
        finally:
            system.stop()
    (of_cut,), (of_frozen,) = cut.records("redis"), frozen.records("redis")
    assert of_cut["plain"]["torn"] > 0
    assert of_cut["plain"]["oldest_s"] > 5.0
    assert (of_cut["plain"]["absent"], of_cut["plain"]["doubled"], of_cut["wrong_at_the_end"]) == (0, 0, 0)
    assert of_frozen["plain"]["failed"] > 0
    assert of_cut["bounded"] is None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("system", ["statehouse", "kafka-streams", "redis", "postgres"])
def test_each_system_is_asked(tmp_path: Path, system: str) -> None:
    command = [sys.executable, "-m", "bench.truth", "--system", system, "--fault", "kill", "--results", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=800)
    (file,) = tmp_path.glob("*-truth.json")
    records = json.loads(file.read_text(encoding="utf-8"))["records"]
    assert all(each["plain"]["reads"] > 100 for each in records)
    if system == "statehouse":
        moments = next(each for each in records if "moments" in each["way"])
        assert (moments["plain"]["torn"], moments["bounded"]["torn"], moments["bounded"]["too_old"]) == (0, 0, 0)
