"""Every command of the runbooks is typed: at three in the morning it must work as it stands there.

Here a recorded fleet answers; `tests/integration/cli/test_live_fleet.py` types them at one that runs, but for the
drain, which the tutorial's test types there (`tests/e2e/test_pages.py`).
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from statehouse.cli.main import app
from tests.deploy.programs import parse
from tests.support.monitoring import RUNBOOKS, documented_metrics, runbook_commands, runbook_metrics
from tests.support.recorded_fleet import RecordedFleet, recorded_fleet

COMMANDS = runbook_commands()
NAMES = {"STORE": "boards", "KEY": "1", "NODE": "node-a"}
# The recorded nodes never leave.
FURTHER = {"nodes drain NODE": ["--no-wait"]}
# These run until they are stopped or what they show has ended, or need a broker: they are parsed as the program would.
ONLY_PARSED = {"controller --standby", "dead-letters", "dead-letters --replay", "restore --watch"}


@pytest.fixture(scope="module")
def fleet() -> Iterator[RecordedFleet]:
    with recorded_fleet() as running:
        running.router.values = {"1": [{"score": 4000}]}
        yield running


@pytest.mark.feature("alerts-recording-rules")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_runbooks_works(command: str, fleet: RecordedFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_ROUTER", fleet.router.target)
    words = [NAMES.get(word, word) for word in command.split()]
    if command in ONLY_PARSED:
        assert parse(words) == words[0]
        return
    done = CliRunner().invoke(app, [*words, *FURTHER.get(command, [])])
    assert done.exit_code == 0, done.stderr
    assert done.output


def test_the_exceptions_are_among_them() -> None:
    assert set(COMMANDS) > ONLY_PARSED | FURTHER.keys()


@pytest.mark.feature("alerts-recording-rules")
def test_each_metric_of_the_runbooks_is_served() -> None:
    series = {name.removesuffix("_count") for name in documented_metrics()}
    assert len(runbook_metrics()) > 15
    assert runbook_metrics() <= series


def test_the_systems_own_commands_work_too() -> None:
    assert "`ss -tn`" in RUNBOOKS.read_text(encoding="utf-8")
    ss = shutil.which("ss")
    assert ss is not None, "`make` installs iproute2"
    subprocess.run([ss, "-tn"], check=True, capture_output=True, timeout=30)
