"""What each command prints, in each format, is what its golden file has: reviewers see what users will see.

`pytest tests/unit/statehouse/cli/test_golden.py --update-golden` writes the files anew; look at the difference then.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from statehouse.cli.main import app
from statehouse.cli.output import OutputFormat
from tests.support.commands import flags_of_commands
from tests.support.recorded_fleet import RecordedFleet, recorded_fleet

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {
    "get": "get boards 1",
    "get-absent": "get boards nope",
    "get-explain": "get boards 1 --explain",
    "get-several": "get boards 1 6",
    "scan": "scan boards",
    "scan-nothing": "scan boards --prefix z",
    "batch": "batch boards 1 6",
    "batch-with-nothing": "batch boards 1 nobody",
    "scan-windows": "scan-windows boards --limit 3",
    "scan-sessions": "scan-sessions boards --limit 3",
    "windows": "windows boards 1",
    "sessions": "sessions boards 1",
    "history": "history boards 1",
    "query": "query boards 1 best",
    "count": "count boards",
    "locate": "locate boards 1",
    "status": "status",
    "nodes-list": "nodes list",
    "stores-list": "stores list",
    "stores-describe": "stores describe boards",
    "stores-describe-global": "stores describe prices",
    "partitions-list": "partitions list",
    "partitions-list-of-a-node": "partitions list --store boards --node node-b",
    "restore": "restore",
    "verify": "verify boards",
    "top": "top --once",
    "errors-list": "errors list",
    "errors-explain": "errors explain NO_REPLICA_AVAILABLE",
    "context-list": "context list",
    "context-show": "context show --context production",
    "config-check": "config check statehouse.toml",
}
_LISTS = ("scan", "scan-windows", "scan-sessions", "windows", "sessions", "history")
READ_VALUES = ("get", "batch", "count", "query", *_LISTS)
CONTEXTS = """
current = "test"
[contexts.production]
routers = ["router-1:7100", "router-2:7100"]
tls_ca = "/etc/statehouse/ca.pem"
tls_server_name = "routers"
token_file = "/run/secrets/statehouse"
[contexts.test]
routers = ["127.0.0.1:7100"]
"""
# What they print depends on settings, disks or Kafka; their own tests see to them.
ELSEWHERE = {
    "assign",
    "compare",
    "attach",
    "config show controller",
    "config show node",
    "config show process",
    "config show router",
    "config show web",
    "dead-letters",
    "reset",
    "send",
    "size",
    "state",
    "versions",
    "topics",
}


@pytest.fixture(scope="module")
def fleet() -> Iterator[RecordedFleet]:
    with recorded_fleet() as running:
        running.router.values = {"1": [{"score": 4000}], "6": {"score": 12.5}, "ü": None}
        yield running


@pytest.mark.feature("stores-replica-partition")
@pytest.mark.feature("listing-reading-command")
@pytest.mark.feature("reasons-failures-explained")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_its_golden_file_has(
    name: str, fleet: RecordedFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)  # where no cluster was started
    (tmp_path / "statehouse.toml").write_text('bootstrap = "kafka-1:9092"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "statehouse").mkdir()
    (tmp_path / "statehouse" / "contexts.toml").write_text(CONTEXTS)
    monkeypatch.setenv("STATEHOUSE_ROUTER", fleet.router.target)
    takes_value = any(COMMANDS[name].startswith(f"{words} ") for words in READ_VALUES)
    formats = [fmt for fmt in OutputFormat if takes_value or fmt is not OutputFormat.VALUE]
    printed = fleet.as_recorded("\n".join(session(COMMANDS[name], fmt) for fmt in formats))
    file = GOLDEN / f"{name}.txt"
    if request.config.getoption("--update-golden"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(printed, encoding="utf-8")
    assert printed == file.read_text(encoding="utf-8")


def session(command: str, fmt: OutputFormat) -> str:
    """Run a command; return it with its output, errors, and exit code."""
    done = CliRunner().invoke(app, [*command.split(), "-o", fmt])
    return f"$ statehouse {command} -o {fmt}\n{done.stdout}{done.stderr}exit code {done.exit_code}\n"


@pytest.mark.feature("listing-reading-command")
def test_each_command_with_formats_has_a_golden_file() -> None:
    with_formats = {words for words, flags in flags_of_commands().items() if "--output" in flags}
    covered = {words for words in with_formats for line in COMMANDS.values() if f"{line} ".startswith(f"{words} ")}
    assert with_formats - covered == ELSEWHERE


def test_each_golden_file_belongs_to_a_command() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == COMMANDS.keys()
