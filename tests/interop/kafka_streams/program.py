"""The Kafka Streams programs in `app/`, built once and run as processes."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from statehouse.local.java import find_java

_APP: Final = Path(__file__).with_name("app")
_BUILD_TIMEOUT_S: Final = 500
_RUN_TIMEOUT_S: Final = 600


@dataclass(frozen=True, slots=True)
class KafkaStreamsPrograms:
    """What was built."""

    class_path: str

    def run(self, name: str, *arguments: object, log: Path) -> None:
        """Run a program to its end."""
        with log.open("wb") as out:
            done = subprocess.run(
                [
                    *(str(find_java()), "-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"),
                    *("-cp", self.class_path, f"statehouse.interop.{name}", *map(str, arguments)),
                ],
                stdout=out,
                stderr=out,
                timeout=_RUN_TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, log.read_text()[-5000:]


def build_programs(build: Path) -> KafkaStreamsPrograms:
    """Build them in a directory; the first build on a machine fetches their dependencies."""
    maven = shutil.which("mvn")
    if maven is None:
        pytest.fail("Maven builds the Kafka Streams programs, and there is no mvn: apt-get install maven")
    done = subprocess.run(
        [maven, "-q", "-B", "package", "--file", str(_APP / "pom.xml"), f"-Dbuild.dir={build}"],
        capture_output=True,
        text=True,
        timeout=_BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return KafkaStreamsPrograms(
        f"{build / 'kafka-streams-interop.jar'}:{(build / 'class-path.txt').read_text().strip()}"
    )
