"""A real Kafka broker as a child process: one KRaft node on the loopback address.

For tests, demonstrations and `statehouse up`. Needs Java and pyspark (whose resolver fetches the jars), no Docker.

As a program it runs a broker in the foreground until SIGINT or SIGTERM:

    python -m statehouse.local.kafka --data-dir DIR --port 9092 [--ready-file FILE]
"""

from __future__ import annotations

import argparse
import atexit
import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Final, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from statehouse.local import broker_config
from statehouse.local.errors import BrokerDied, BrokerNotReady, LocalError, quoted
from statehouse.local.jars import class_path, resolve_jars
from statehouse.local.java import find_java
from statehouse.local.log_lines import last_lines
from statehouse.local.ports import LOOPBACK, ensure_free, free_port

READY_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
# The timeout of a metadata request, and the pause after a refused one: together the delay until readiness is noticed.
_METADATA_TIMEOUT_S: Final = 1.0
_RETRY_PAUSE_S: Final = 0.05
_LOG_LINES_SHOWN: Final = 40
_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})


class EmbeddedKafka:
    """One broker and its data directory.

    `data_dir` holds the log segments, the configuration and broker.log; without one a temporary directory is used,
    and removed by stop(). `port` 0 picks a free one, which the object keeps: stop() or kill() and then start() again
    brings the same address back, with the same data if `data_dir` was given (or after kill(), which removes nothing).
    `config` overrides broker settings, except the ones that define the node (`broker_config.OWNED_KEYS`).

    The process is in a session of its own: a Ctrl-C in the terminal reaches the broker's clients and not the broker,
    so that they can still say goodbye to it. It is stopped when this process exits in any way that runs exit
    handlers; after a SIGKILL of this process it goes on, and can be found by its pid only.

    Not thread-safe. The constructor raises ValueError if `config` has one of OWNED_KEYS; start() raises LocalError
    subclasses: PortTaken, BrokerDied, BrokerNotReady, and those of find_java and resolve_jars.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        port: int = 0,
        heap_mb: int = 256,
        config: Mapping[str, str] = _NO_CONFIG,
        *,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        broker_config.check_overrides(config)
        self._is_temporary = data_dir is None
        self._data_dir = None if data_dir is None else data_dir.resolve()
        self._port = port
        self._heap_mb = heap_mb
        self._config = dict(config)
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()

    @property
    def bootstrap(self) -> str:
        """The address clients begin with, "127.0.0.1:port"."""
        if self._port == 0:
            raise LocalError("the broker's port is chosen by start(); call it before asking for the address.")
        return f"{LOOPBACK}:{self._port}"

    @property
    def port(self) -> int:
        """The broker's port; 0 until the first start() of a broker that was given none."""
        return self._port

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        if self._process is None:
            raise LocalError("the broker is not running; call start() first.")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process exists; says nothing about whether it answers."""
        return self._process is not None and self._process.poll() is None

    @property
    def data_dir(self) -> Path:
        """Where the broker keeps everything."""
        if self._data_dir is None:
            raise LocalError("the broker's temporary directory is made by start(); call it first.")
        return self._data_dir

    @property
    def log_path(self) -> Path:
        """The broker's log file; restarts append to it."""
        return self.data_dir / "broker.log"

    def start(self) -> Self:
        """Start the process and return once the broker answers a metadata request."""
        if self.is_running:
            raise LocalError(f"the broker is already running (pid {self.pid}); stop it first.")
        if self._port != 0:
            ensure_free(self._port)  # before a download that may take a minute
        java = find_java()
        jars = class_path(resolve_jars("broker"))
        if self._port == 0:
            self._port = free_port()
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="statehouse-kafka-"))
        atexit.register(self._stop_at_exit)
        try:
            self._write_configuration()
            cluster_id = self._format(java, jars)
            command = broker_config.broker_command(java, jars, self._heap_mb)
            self._process = self._spawn(command)
            self._wait_ready(self._process, cluster_id)
        except BaseException:
            # Even a temporary directory stays: its log tells why the start failed. An exit handler removes it.
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop by SIGTERM, and by SIGKILL if that takes too long. May be called when stopped."""
        process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self._process = None
        self._remove_temporary()
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """End the process by SIGKILL, as a crash would; the data stays, for start() to recover."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait(self) -> None:
        """Block until the broker's process ends on its own, then raise BrokerDied."""
        if self._process is None:
            raise LocalError("the broker is not running; call start() first.")
        raise self._died("the broker", self._process.wait())

    def __enter__(self) -> Self:
        return self if self.is_running else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write_configuration(self) -> None:
        (self.data_dir / broker_config.LOG_DIR).mkdir(parents=True, exist_ok=True)
        text = broker_config.properties_text(self._properties())
        (self.data_dir / broker_config.PROPERTIES_FILE).write_text(text, encoding="latin-1", errors="backslashreplace")

    def _properties(self) -> dict[str, str]:
        controller_port = free_port()
        while controller_port == self._port:
            controller_port = free_port()
        return broker_config.server_properties(self._port, controller_port, self._config)

    def _format(self, java: Path, jars: str) -> str:
        """Prepare the data directory if it is new; return the cluster's id."""
        meta_path = self.data_dir / broker_config.LOG_DIR / "meta.properties"
        if not meta_path.exists():
            # A UUID in Kafka's form, without dashes: the tool would take a leading dash for an option.
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")
            process = self._spawn(broker_config.format_command(java, jars, cluster_id))
            try:
                exit_code = process.wait(self._ready_timeout_s)
            except subprocess.TimeoutExpired as error:
                raise BrokerNotReady(self._ready_timeout_s, self.log_path, self._log_tail()) from error
            finally:
                process.kill()
                process.wait()
            if exit_code != 0:
                raise self._died("preparing the broker's data directory", exit_code)
        lines = meta_path.read_text().splitlines()
        return next(line.removeprefix("cluster.id=") for line in lines if line.startswith("cluster.id="))

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                # Java 17 takes file names' encoding from the locale, and with POSIX's fails on names beyond ASCII.
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )

    def _wait_ready(self, process: subprocess.Popen[bytes], cluster_id: str) -> None:
        """Return at this broker's first metadata answer: while the port is open, every request may still be refused."""
        deadline = time.monotonic() + self._ready_timeout_s
        admin = AdminClient(
            {
                "bootstrap.servers": self.bootstrap,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # refused connections are expected here
            }
        )
        while time.monotonic() < deadline:
            exit_code = process.poll()
            if exit_code is not None:
                raise self._died("the broker", exit_code)
            try:
                metadata = admin.list_topics(timeout=_METADATA_TIMEOUT_S)
            except KafkaException:
                metadata = None
            if metadata is not None and metadata.brokers and metadata.cluster_id == cluster_id:
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_RETRY_PAUSE_S)
        raise BrokerNotReady(self._ready_timeout_s, self.log_path, self._log_tail())

    def _died(self, what: str, exit_code: int) -> BrokerDied:
        return BrokerDied(
            f"{what} ended with exit code {exit_code}. The cause is usually in its last lines, below; all of them are "
            f"in {self.log_path}.{quoted('The broker', self._log_tail())}"
        )

    def _log_tail(self) -> list[str]:
        return last_lines(self.log_path)[-_LOG_LINES_SHOWN:]

    def _remove_temporary(self) -> None:
        if self._is_temporary and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner_pid:  # a forked child inherits exit handlers, not the broker
            self.stop()


class _Interrupted(BaseException):
    """SIGINT or SIGTERM, raised in the main thread wherever it is."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker in the foreground; the exit code is 0 after SIGINT or SIGTERM, 1 if it could not run or died."""
    options = _parser().parse_args(arguments)
    config = dict(options.config)
    ready_file: Path | None = options.ready_file
    handlers = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with EmbeddedKafka(options.data_dir, options.port, options.heap_mb, config) as broker:
            if ready_file is not None:
                _write_atomically(ready_file, broker.bootstrap + "\n")
            sys.stdout.write(f"kafka is ready on {broker.bootstrap} (pid {broker.pid}, log {broker.log_path})\n")
            sys.stdout.flush()
            broker.wait()
    except _Interrupted:
        return 0
    except (LocalError, ValueError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m statehouse.local.kafka",
        description="Run a single Kafka broker in the foreground, until SIGINT or SIGTERM.",
    )
    parser.add_argument("--data-dir", type=Path, help="where it keeps its data (default: a temporary directory)")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: a free one)")
    parser.add_argument("--heap-mb", type=int, default=256, help="JVM heap (default: %(default)s)")
    parser.add_argument(
        "--config", action="append", default=[], type=_key_value, metavar="KEY=VALUE", help="a broker setting"
    )
    parser.add_argument("--ready-file", type=Path, help="gets the address once the broker answers; removed at the end")
    return parser


def _key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    # Only the first one counts: a second Ctrl-C must not cut the orderly stop short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Interrupted


def _write_atomically(path: Path, text: str) -> None:
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(text)
    scratch.replace(path)


if __name__ == "__main__":
    sys.exit(main())
