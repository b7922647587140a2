"""A process with a client starts others, as PySpark starts Java."""

from __future__ import annotations

import subprocess
import sys

_STARTS_OTHERS = """
import statehouse
import subprocess, threading
import grpc

channel = grpc.insecure_channel("127.0.0.1:9")
stopped = threading.Event()

def ask():
    while not stopped.is_set():
        try:
            channel.unary_unary("/a/b")(b"", timeout=0.2)
        except grpc.RpcError:
            pass

askers = [threading.Thread(target=ask) for _ in range(4)]
for each in askers:
    each.start()
for _ in range(10):
    subprocess.run(["true"], preexec_fn=lambda: None, check=True, timeout=30)
stopped.set()
for each in askers:
    each.join()
"""


def test_calls_in_other_threads_do_not_meddle_with_processes_that_are_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _STARTS_OTHERS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "fork" not in done.stderr  # gRPC says that it skips its handlers, where it has them
