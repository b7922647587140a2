"""What Redis and PostgreSQL have in common: one instance, filled by Spark's `foreachBatch` (`bench.truth.feed`)."""

from __future__ import annotations

import json
import os
import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.sides.servers import ROOT
from bench.truth import QUERY, SOURCE
from bench.truth.systems.system import System
from bench.waiting import wait_for
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

_STOP_S: Final = 30.0
# On a busy machine, where little is compiled yet, Spark's stream once overflowed its thread's stack of a mebibyte.
_CONF: Final = {"spark.driver.extraJavaOptions": "-Xss4m"}
_UP_S: Final = 60.0


class Fed(System):
    """One server, and the Spark application that fills it through the link."""

    def __init__(self, target: str, bootstrap: str, link: FaultProxy, directory: Path, server: ManagedProcess) -> None:
        self.link, self._server = link, server
        self._checkpoints = directory / "checkpoints"
        env = {name: value for name, value in os.environ.items() if not name.startswith("STATEHOUSE_")} | {
            "PYTHONPATH": str(ROOT),
            "STATEHOUSE_BOOTSTRAP": bootstrap,
            "STATEHOUSE_CHECKPOINT_DIR": str(self._checkpoints),
            "STATEHOUSE_SPARK_CONF": json.dumps(_CONF),
            "SPARK_LOCAL_DIRS": str(directory / "spark"),
        }
        command = [sys.executable, "-m", "bench.truth.feed", target, str(link.port), "--source", SOURCE]
        log = directory / "logs" / "spark.log"
        self._spark = ManagedProcess("spark", command, log, env=env, cwd=ROOT, stop_timeout_s=_STOP_S)

    @property
    def serving(self) -> Sequence[ManagedProcess]:
        """See System."""
        return (self._server,)

    @property
    def writer(self) -> ManagedProcess:
        """See System."""
        return self._spark

    @property
    def checkpoints(self) -> Path:
        """See System."""
        return self._checkpoints / QUERY

    def start(self) -> None:
        """See System."""
        self._server.start()
        wait_for(self.is_up, _UP_S, f"{self._server.name} to answer")
        self.prepare()
        self.writer.start()

    def stop(self) -> None:
        """See System."""
        self.writer.stop()
        self._server.stop()

    def prepare(self) -> None:
        """Make what Spark needs there; by default nothing."""

    @abstractmethod
    def is_up(self) -> bool:
        """Whether the server answers."""
