"""PostgreSQL: one instance of Debian's package, asked by one statement for all four rows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.truth import ACCOUNTS, COUNTERS
from bench.truth.checks import Shown
from bench.truth.libpq import USER, Connection, DatabaseFailure, array, conninfo
from bench.truth.systems.fed import Fed
from bench.truth.systems.system import NoAnswer, Pair, Way
from statehouse.local.process import ManagedProcess
from tests.support.fault_proxy import FaultProxy

_ATTEMPT_S: Final = 1.0
_DEBIANS: Final = Path("/usr/lib/postgresql")
_INIT_S: Final = 60
TABLES: Final = (
    f"CREATE TABLE {ACCOUNTS} (key text PRIMARY KEY, value bigint NOT NULL)",
    f"CREATE TABLE {COUNTERS} (key text PRIMARY KEY, value bigint NOT NULL)",
    # Logged: an unlogged one is empty after a crash, and the batch that it had would be lost without a word.
    "CREATE TABLE staging (key text PRIMARY KEY, balance bigint NOT NULL, transfers bigint NOT NULL)",
)
_READ: Final = (
    "SELECT 'accounts', key, value FROM accounts WHERE key = ANY($1::text[]) "
    "UNION ALL SELECT 'counters', key, value FROM counters WHERE key = ANY($1::text[])"
)


class Postgres(Fed):
    """See the module."""

    def __init__(self, bootstrap: str, link: FaultProxy, port: int, directory: Path) -> None:
        self._port, self._of_thread = port, threading.local()
        data = directory / "postgres"
        programs = _programs()
        _initialise(programs / "initdb", data)
        server = ManagedProcess(
            "postgres",
            [*_as_its_user(), str(programs / "postgres"), "-D", str(data), "-p", str(port), "-k", str(data)],
            directory / "logs" / "postgres.log",
            cwd=data,
            stop_signal=signal.SIGINT,
            stop_timeout_s=30.0,
        )
        super().__init__("postgres", bootstrap, link, directory, server)
        self.ways = {"PostgreSQL": Way(self._read, None)}

    def is_up(self) -> bool:
        """See Fed."""
        try:
            with Connection(conninfo(self._port), _ATTEMPT_S) as connection:
                return bool(connection.execute("SELECT 1"))
        except DatabaseFailure:
            return False

    def prepare(self) -> None:
        """Make the tables."""
        with Connection(conninfo(self._port), _ATTEMPT_S) as connection:
            for each in TABLES:
                connection.execute(each)

    def _read(self, pair: Pair, timeout_s: float) -> Shown:
        attempt_s = min(_ATTEMPT_S, timeout_s)
        try:
            if self._connection is None:
                self._connection = Connection(conninfo(self._port), attempt_s)
            rows = self._connection.execute(_READ, [array(pair)], timeout_s=attempt_s)
        except DatabaseFailure as failure:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise NoAnswer(str(failure)) from failure
        found = {(table, key): int(str(value)) for table, key, value in rows}
        (first, second), (one, other) = [
            [found.get((table, account)) for account in pair] for table in (ACCOUNTS, COUNTERS)
        ]
        return Shown((first, second), (one, other))

    @property
    def _connection(self) -> Connection | None:
        """The connection of the thread that asks: a connection can't be shared."""
        found: Connection | None = getattr(self._of_thread, "connection", None)
        return found

    @_connection.setter
    def _connection(self, connection: Connection | None) -> None:
        self._of_thread.connection = connection


def _programs() -> Path:
    """Return the folder of the newest version that is installed."""
    found = sorted(_DEBIANS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        raise BenchFailure("PostgreSQL is not there: as root, `apt-get install postgresql`")
    return found[-1].parent


def _as_its_user() -> Sequence[str]:
    """Return what goes before a command: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return ()
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


def _initialise(program: Path, data: Path) -> None:
    data.mkdir(parents=True)
    if os.geteuid() == 0:
        shutil.chown(data, USER, USER)
    command = [*_as_its_user(), str(program), "-D", str(data), "-U", USER, "--auth=trust", "--encoding=UTF8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_INIT_S, cwd=data)
    if done.returncode != 0:
        raise BenchFailure(f"initdb failed: {done.stderr.strip()}")
