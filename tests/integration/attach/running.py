"""Runs the jobs, and what serves their states: each a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from processor.run.start_check import last_commits
from tests.integration.attach import jobs
from tests.integration.processor.support import ProcessorProcess, kill_with_jvm
from tests.interop.spark_versions.installed import SparkInstall
from tests.support.polling import poll_until


class Jobs:
    """A process that runs jobs, each time that it is asked for, until each has read all events.

    `spark`: a version of Spark other than the tests'.
    """

    def __init__(
        self,
        events: Path,
        checkpoints: Path | str,
        provider: str,
        names: Sequence[str],
        log: Path,
        spark: SparkInstall | None = None,
    ) -> None:
        python, env = (sys.executable, None) if spark is None else (spark.python, spark.environment)
        command = [python, jobs.__file__, str(events), str(checkpoints), provider, *names]
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env
        )

    def begin(self) -> None:
        """Have them run."""
        assert self._process.stdin is not None
        print("run", file=self._process.stdin, flush=True)

    def run(self) -> None:
        """Run them; return when all have ended."""
        self.begin()
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "run\n", Path(self._log.name).read_text()[-3000:]

    def kill(self) -> None:
        """End the process and its JVM by SIGKILL, whatever they are doing."""
        kill_with_jvm(self._process)
        self.stop()

    def stop(self) -> None:
        """End the process, and its JVM with it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class AttachProcess(ProcessorProcess):
    """`statehouse attach` with a file of states."""

    def __init__(self, bootstrap: str, application_id: str, states: Path, directory: Path, *options: str) -> None:
        program = (sys.executable, "-m", "statehouse.cli", "attach", "--master", "local[2]")
        super().__init__("--states", bootstrap, directory, program=program)
        self._application_id, self._bootstrap = application_id, bootstrap
        self._command = [
            *(*program, "--states", str(states), "--bootstrap", bootstrap, "--application-id", application_id),
            *("--heartbeat-interval-ms", "200", "--session-timeout-ms", "6000", *options),
        ]

    def wait_for_all(self, checkpoints: Path, stores: dict[str, str], timeout_s: float = 300.0) -> None:
        """Wait until each store is at the last batch of its job. `stores`: store -> job."""
        self.wait_for_batches({store: newest(checkpoints / job) for store, job in stores.items()}, timeout_s)

    def wait_for_batches(self, wanted: dict[str, int], timeout_s: float = 300.0) -> None:
        """Wait until each store is at a batch, or at a later one. `wanted`: store -> batch."""

        def are_there() -> bool:
            assert self.is_running, self.log_tail()
            found = last_commits(self._bootstrap, self._application_id, list(wanted))
            return all(store in found and found[store].batch_id >= batch for store, batch in wanted.items())

        poll_until(are_there, timeout_s, "all stores to be at the last batch")


def newest(checkpoint: Path) -> int:
    """The newest batch that a job has committed."""
    return max((int(each.name) for each in (checkpoint / "commits").iterdir() if each.name.isdigit()), default=-1)
