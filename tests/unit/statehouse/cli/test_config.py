"""`statehouse config`, and through it every setting of every process: by flag, by variable and by file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.settings import CONFIG_ENV, PROCESSES, Setting
from tests.support.commands import flags_of_commands
from tests.support.variables import without_ours

Run = Callable[..., Result]
EVERY_SETTING = [
    pytest.param(process, setting, id=f"{process}-{name}")
    for process, cls in PROCESSES.items()
    for name, setting in cls.declared().items()
]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    without_ours(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["config", *arguments])


def another(setting: Setting) -> Any:
    """A value that isn't the default and breaks no rule."""
    if setting.is_switch:
        return not setting.field.default
    if setting.is_mapping:
        return {"a": "x=y"}
    match setting.kind:
        case "INTEGER":
            return (setting.field.default or 1) + 1
        case "NUMBER":
            return (setting.field.default or 1) / 2
        case "TEXT" | "PATH":
            elsewhere = {"_url": "http://elsewhere", "_endpoint": "http://elsewhere", "host": "elsewhere"}
            return next((place for end, place in elsewhere.items() if setting.name.endswith(end)), "/elsewhere")
        case choices:
            return next(each for each in choices.split("|") if each != setting.field.default)


def beside(name: str) -> dict[str, str]:
    """Return settings without which this one of Kafka's security can't be given."""
    login = {"kafka_security_protocol": "sasl_ssl", "kafka_sasl_mechanism": "PLAIN", "kafka_credentials": "/given"}
    tokens = {"kafka_sasl_mechanism": "OAUTHBEARER", "kafka_oauth_token_url": "http://given"}
    files = {"kafka_security_protocol": "ssl", "kafka_certificate": "/given", "kafka_key": "/given"}
    needed = {
        **dict.fromkeys(("kafka_sasl_mechanism", "kafka_credentials"), login),
        **dict.fromkeys(("kafka_oauth_token_url", "kafka_oauth_scope"), login | tokens),
        **dict.fromkeys(("kafka_ca", "kafka_certificate", "kafka_key"), files),
    }
    return {other: value for other, value in needed.get(name, {}).items() if other != name}


def as_flag(setting: Setting, value: Any) -> list[str]:
    if setting.is_switch:
        return [setting.flag if value else setting.flag.replace("--", "--no-", 1)]
    if setting.is_mapping:
        return [word for name, each in value.items() for word in (setting.flag, f"{name}={each}")]
    return [setting.flag, str(value)]


def shown(result: Result, setting: Setting) -> tuple[Any, str]:
    assert result.exit_code == ExitCode.DONE, result.stderr
    found = json.loads(result.stdout)[setting.name]
    return found["value"], found["source"]


@pytest.mark.feature("settings-flag-variable")
@pytest.mark.parametrize(("process", "setting"), EVERY_SETTING)
def test_each_setting_can_be_given_by_flag_variable_and_file(
    process: str, setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value = another(setting)
    for name in {"tls_certificate", "tls_key", "tls_ca"} - {setting.name}:  # others do nothing without these
        monkeypatch.setenv(f"STATEHOUSE_{name.upper()}", "/given")
    for name, needed in beside(setting.name).items():
        monkeypatch.setenv(f"STATEHOUSE_{name.upper()}", needed)
    show = ["show", process, "-o", "json"]
    if "application_id" in PROCESSES[process].declared() and setting.name != "application_id":
        show += ["--application-id", "a"]
    assert value != setting.field.default

    assert shown(run(*show, *as_flag(setting, value)), setting) == (value, "flag")

    with monkeypatch.context() as patch:
        patch.setenv(setting.variable, json.dumps(value) if setting.is_mapping else str(value))
        assert shown(run(*show), setting) == (value, "environment")

    file = tmp_path / "statehouse.toml"
    written = (
        f"{{{', '.join(f'{name} = {json.dumps(each)}' for name, each in value.items())}}}"
        if setting.is_mapping
        else json.dumps(value)
    )
    file.write_text(f"{setting.name} = {written}\n")
    monkeypatch.setenv(CONFIG_ENV, str(file))
    assert shown(run(*show), setting) == (value, "file")


def test_the_file_can_be_named_by_a_flag(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text("sink_tasks = 7\n")
    result = run("show", "process", "--config-file", str(file), "-o", "json")
    assert json.loads(result.stdout)["sink_tasks"] == {"value": 7, "source": "file"}


@pytest.mark.parametrize("process", PROCESSES)
def test_what_is_not_given_is_the_default(process: str, run: Run) -> None:
    required = ["--application-id", "a"] if "application_id" in PROCESSES[process].declared() else []
    found = json.loads(run("show", process, *required, "-o", "json").stdout)
    assert found.keys() == PROCESSES[process].declared().keys()
    assert {each["source"] for name, each in found.items() if name != "application_id"} == {"default"}


@pytest.mark.parametrize("process", sorted(PROCESSES.keys() - {"web"}))  # which is no command of `statehouse`
def test_a_process_takes_the_flags_that_are_shown_for_it(process: str) -> None:
    flags = flags_of_commands()
    own = {"process": {"--static"}, "controller": {"--standby"}, "node": set(), "router": set()}[process]
    assert flags[process] - own == flags[f"config show {process}"] - {"--output"}
    for setting in PROCESSES[process].declared().values():
        assert set(as_flag(setting, value=True if setting.is_switch else {"a": "b"})[:1]) <= flags[process]


def wrong(setting: Setting) -> str | None:
    """What a setting's variable can't be; None where any text will do."""
    if setting.kind == "PATH" or (setting.kind == "TEXT" and not setting.bounds):
        return None
    return "" if setting.kind == "TEXT" else "neither a number nor a word"


@pytest.mark.parametrize(("process", "setting"), [each for each in EVERY_SETTING if wrong(each.values[1]) is not None])
def test_an_error_names_flags_and_variables_that_exist(
    process: str, setting: Setting, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(setting.variable, str(wrong(setting)))
    result = run("show", process)
    assert result.exit_code == ExitCode.USAGE
    assert setting.variable in result.stderr
    named = set(re.findall(r"--[a-z-]+", result.stderr))
    assert named <= flags_of_commands()[f"config show {process}"]
    assert setting.flag in named or setting.is_mapping, "what is no JSON is the variable's fault alone"


@pytest.mark.feature("settings-flag-variable")
def test_show_prints_a_table_with_sources(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_RACK", "r1")
    result = run("show", "node", "--application-id", "a", "--port", "0")
    assert result.exit_code == ExitCode.DONE
    rows = [line.rsplit(None, 1) for line in result.stdout.splitlines()]
    found = {
        row.split(None, 1)[0]: (row.split(None, 1)[1].strip(), source) for row, source in rows if " " in row.strip()
    }
    assert found["rack"] == ("r1", "environment")
    assert found["node_port"] == ("0", "flag")
    assert found["memory_store_max_bytes"] == ("67108864 (64 MiB)", "default")
    assert found["advertised_host"] == ("bind_host", "default")


def test_show_tells_what_cannot_work(run: Run) -> None:
    result = run("show", "router", "--workers", "0")
    assert result.exit_code == ExitCode.USAGE
    assert "workers (--workers, STATEHOUSE_WORKERS)" in result.stderr
    assert "application_id (--application-id, STATEHOUSE_APPLICATION_ID) is missing" in result.stderr
    assert result.stdout == ""


def test_there_are_no_other_processes(run: Run) -> None:
    assert run("show", "broker").exit_code == ExitCode.USAGE


GOOD = """
bootstrap = "kafka-1:9092,kafka-2:9092"
bind_host = "0.0.0.0"
node_port = 7201
max_watches = 5
attempt_timeout_ms = 300
state_dir = "/var/lib/statehouse"
[spark_conf]
"spark.ui.enabled" = "true"
"""


def test_check_accepts_a_file_for_a_whole_fleet(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_WORKERS", "none at all")  # variables don't count
    file = tmp_path / "fleet.toml"
    file.write_text(GOOD)
    result = run("check", str(file))
    assert (result.exit_code, result.stdout) == (
        ExitCode.DONE,
        f"{file} can be used by process, controller, node, router, web\n",
    )
    assert json.loads(run("check", str(file), "-o", "json").stdout) == {"file": str(file), "problems": []}


@pytest.mark.parametrize(
    ("lines", "problems"),
    [
        ("sesion_timeout_ms = 1", ["there is no setting sesion_timeout_ms: did you mean session_timeout_ms?"]),
        ("[node]\nnode_port = 1", ["there is no setting node"]),
        (
            "bind_host = 5",
            [
                (
                    "process, controller, node, router, web: bind_host (--bind-host, STATEHOUSE_BIND_HOST) must be a "
                    "valid string"
                )
            ],
        ),
        ("node_port = 70000", ["node: node_port (--port, STATEHOUSE_NODE_PORT) must be less than or equal to 65535"]),
        (
            "heartbeat_interval_ms = 5000",
            ["process, node: session_timeout_ms must be at least 3 x heartbeat_interval_ms"],
        ),
        ("state_dir = 1\nworkers = '2'\nx = 1", ["there is no setting x", "node: state_dir", "router: workers"]),
        ("spark_conf = {a = 1}", ["process: spark_conf (--conf, STATEHOUSE_SPARK_CONF) must be a valid string"]),
    ],
)
def test_check_names_all_that_is_wrong(run: Run, tmp_path: Path, lines: str, problems: list[str]) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(lines)
    result = run("check", str(file))
    assert result.exit_code == ExitCode.USAGE
    first, *found = result.stderr.splitlines()
    assert first == f"error: {file} can't work:"
    assert len(found) == len(problems)
    for line, problem in zip(found, problems, strict=True):
        assert line.startswith(f"  {problem}")
    told = run("check", str(file), "-o", "json")
    assert told.exit_code == ExitCode.USAGE
    assert json.loads(told.stdout)["problems"] == [line.strip() for line in found]


def test_check_says_that_a_file_cannot_be_read(run: Run, tmp_path: Path) -> None:
    result = run("check", str(tmp_path / "none.toml"))
    assert result.exit_code == ExitCode.USAGE
    assert "none.toml can't be read" in result.stderr
