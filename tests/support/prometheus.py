"""A Prometheus of its own, Debian's, with the project's rules."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import yaml

from statehouse.local.ports import LOOPBACK, free_port
from tests.support.monitoring import RULES
from tests.support.polling import poll_until
from tests.support.tools import tool

INTERVAL_S: Final = 1


class Prometheus:
    """Scrapes targets each second. `jobs`: the ports by the name of the job, all labelled as one application's."""

    def __init__(self, folder: Path, jobs: Mapping[str, list[int]], application: str) -> None:
        self._folder, self._port = folder, free_port()
        scraped = [
            {
                "job_name": job,
                "static_configs": [
                    {"targets": [f"{LOOPBACK}:{port}" for port in ports], "labels": {"application": application}}
                ],
            }
            for job, ports in jobs.items()
        ]
        every = f"{INTERVAL_S}s"
        config = {
            "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
            "rule_files": [str(RULES)],
            "scrape_configs": scraped,
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")

    def __enter__(self) -> Self:
        command = [
            tool("prometheus"),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'tsdb'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
        ]
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        poll_until(self._is_ready, 60, "Prometheus to be ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(30)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series that an expression gives now: `metric` and `value` of each."""
        answer = self._get("query", query=expression)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def alerts(self, state: str = "firing") -> list[dict[str, str]]:
        """Return the labels of the alerts in a state."""
        found = self._get("alerts")["data"]["alerts"]
        return [each["labels"] for each in found if each["state"] == state]

    def _get(self, what: str, **parameters: str) -> Any:
        url = f"http://{LOOPBACK}:{self._port}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.loads(answer.read())

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}/-/ready", timeout=5):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False
