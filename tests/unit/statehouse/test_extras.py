"""The client needs the base package only: no Spark, no Kafka client, no server side."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = [
    "confluent_kafka", "grpc_health", "grpc_reflection", "grpc_status", "prometheus_client", "pyarrow", "pydantic",
    "pydantic_settings", "pyspark", "rich", "rocksdict", "starlette", "structlog", "typer", "uvicorn",
]  # fmt: skip


def test_client_imports_without_any_extra() -> None:
    program = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); import statehouse.client"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
