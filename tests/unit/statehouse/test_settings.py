"""Settings: precedence, the file, and rules between them. That each can be set is shown with `config show`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from statehouse.client.asynchronous import DEFAULT_MAX_MESSAGE_BYTES
from statehouse.errors import ConfigurationError
from statehouse.settings import (
    CONFIG_ENV,
    PROCESSES,
    NodeSettings,
    ProcessorSettings,
    RouterSettings,
    check_file,
    load,
    load_with_sources,
)
from statehouse.settings.removed import REMOVED
from tests.support.variables import without_ours

ROOT = Path(__file__).parents[3]
_NODE = {"application_id": "a", "instance_id": "n"}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    without_ours(monkeypatch)


def test_flag_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text('application_id = "file"\nrouter_port = 1\nattempt_timeout_ms = 2\nnode_port = 9\n')
    monkeypatch.setenv("STATEHOUSE_ROUTER_PORT", "3")
    monkeypatch.setenv("STATEHOUSE_ATTEMPT_TIMEOUT_MS", "4")
    loaded = load_with_sources(RouterSettings, {"attempt_timeout_ms": 5, "log_level": None}, file)
    settings = loaded.settings
    assert (settings.application_id, settings.router_port, settings.attempt_timeout_ms) == ("file", 3, 5)
    names = ("application_id", "router_port", "attempt_timeout_ms", "log_level")
    assert [loaded.sources[name] for name in names] == ["file", "environment", "flag", "default"]


def test_the_variable_names_the_file_unless_a_flag_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "named.toml").write_text('rack = "named"')
    (tmp_path / "given.toml").write_text('rack = "given"')
    monkeypatch.setenv(CONFIG_ENV, str(tmp_path / "named.toml"))
    assert load(NodeSettings, _NODE).rack == "named"
    assert load(NodeSettings, _NODE, tmp_path / "given.toml").rack == "given"


def test_settings_made_in_python_read_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATEHOUSE_SINK_TASKS", "7")
    assert ProcessorSettings().sink_tasks == 1
    assert load(ProcessorSettings, {}).sink_tasks == 7


def test_a_mapping_is_put_together_from_all_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text('[spark_conf]\n"a" = "file"\n"b" = "file"\n"c" = "file"\n')
    monkeypatch.setenv("STATEHOUSE_SPARK_CONF", '{"b": "environment", "c": "environment"}')
    loaded = load_with_sources(ProcessorSettings, {"spark_conf": ["c=x=y"]}, file)
    assert loaded.settings.spark_conf == {"a": "file", "b": "environment", "c": "x=y"}
    assert loaded.sources["spark_conf"] == "flag, environment, file"


@pytest.mark.parametrize(
    ("flags", "variables", "message"),
    [
        ({"spark_conf": ["a"]}, {}, "--conf 'a' is not NAME=VALUE"),
        ({}, {"STATEHOUSE_SPARK_CONF": "[]"}, r"STATEHOUSE_SPARK_CONF must be a JSON object, not '\[\]'"),
        ({}, {"STATEHOUSE_SPARK_CONF": "a=b"}, "STATEHOUSE_SPARK_CONF must be a JSON object"),
        ({"spark_conf": {"a": 1}}, {}, r"spark_conf \(--conf, STATEHOUSE_SPARK_CONF\) must be a valid string"),
    ],
)
def test_a_mapping_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], variables: dict[str, str], message: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        load(ProcessorSettings, flags)


def test_a_message_says_what_was_given_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigurationError, match=r"application_id \(--application-id, STATEHOUSE_APPLICATION_ID\) is missing"
    ):
        load(RouterSettings, {})
    monkeypatch.setenv("STATEHOUSE_NODE_PORT", "none")
    with pytest.raises(
        ConfigurationError,
        match=r"node_port \(--port, STATEHOUSE_NODE_PORT\) must be a valid integer, not 'none' \(from the envir",
    ):
        load(NodeSettings, _NODE)


@pytest.mark.feature("settings-flag-variable")
@pytest.mark.parametrize(
    ("process", "given", "message"),
    [
        ("node", {"heartbeat_interval_ms": 1_000, "session_timeout_ms": 2_999}, "at least 3 x heartbeat_interval_ms"),
        ("node", {"heartbeat_interval_ms": 100, "session_timeout_ms": 700}, "session_timeout_ms must be at least 750"),
        ("node", {"bind_host": "0.0.0.0"}, "set advertised_host"),
        ("router", {"workers": 2, "metrics_port": 65_535}, "a port of its own"),
        ("process", {"session_timeout_ms": 2_999}, "at least 3 x heartbeat_interval_ms"),
    ],
)
def test_settings_are_checked_against_each_other(process: str, given: dict[str, Any], message: str) -> None:
    required = {} if process == "process" else {"application_id": "a"}
    with pytest.raises(ConfigurationError, match=message):
        load(PROCESSES[process], required | given)


@pytest.mark.feature("address-node-listens")
def test_a_node_on_all_addresses_says_where_it_is_reached() -> None:
    assert load(NodeSettings, _NODE | {"bind_host": "0.0.0.0", "advertised_host": "node-1"}).bind_host == "0.0.0.0"


@pytest.mark.parametrize("content", [None, "a = ", "a = '\xff'"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "some.toml"
    if content is not None:
        file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"some\.toml can't be read"):
        load(RouterSettings, {"application_id": "a"}, file)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("node_prot = 1", "there is no setting node_prot: did you mean node_port"),
        (
            'workers = "2"',
            r"workers \(--workers, STATEHOUSE_WORKERS\) must be a valid integer, not '2' \(from the file\)",
        ),
        ("workers = true", "must be a valid integer, not True"),
        ("workers = 0", "must be greater than or equal to 1, not 0"),
        ("router_rack = 5", "must be a valid string"),
        ("router_rack = 1979-05-27", "router_rack"),
    ],
)
def test_a_file_has_known_keys_and_the_types_of_toml(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text(f'application_id = "a"\n{line}\n')
    with pytest.raises(ConfigurationError, match=message):
        load(RouterSettings, {}, file)


def test_a_number_in_the_file_is_no_boolean(tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text("accept_lost_checkpoint = 1\n")
    with pytest.raises(ConfigurationError, match="must be a valid boolean, not 1"):
        load(ProcessorSettings, {}, file)


def test_the_file_that_the_page_shows_can_work(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "settings.md").read_text(), re.DOTALL)
    file = tmp_path / "statehouse.toml"
    file.write_text(shown)
    assert check_file(file) == []


@pytest.mark.feature("batches-pages-bounded")
def test_clients_take_messages_as_large_as_servers_send() -> None:
    """The client's own package does without the settings', and so declares its default on its own."""
    assert NodeSettings(application_id="a").max_message_bytes == DEFAULT_MAX_MESSAGE_BYTES


def test_a_process_leaves_keys_of_others_alone(tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text('application_id = "a"\nnode_port = 7\nrouter_port = 8\nsink_tasks = 9\n')
    assert load(NodeSettings, {}, file).node_port == 7
    assert load(RouterSettings, {}, file).router_port == 8
    assert load(ProcessorSettings, {}, file).sink_tasks == 9


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://me:secret@registry", "can't hold a password"),
        ("http://a,ftp://b", "must be http"),
        ("registry:8081", "must be http"),
    ],
)
def test_the_registrys_url_is_one_and_holds_no_password(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        NodeSettings(**_NODE, schema_registry_url=url)
    assert "secret" not in str(refused.value)


def test_serdes_get_what_settings_say_of_the_registry() -> None:
    file = Path("/run/secrets/registry")
    options = NodeSettings(
        **_NODE, schema_registry_url="http://a,https://b", schema_registry_credentials=file
    ).serde_options
    assert (options.registry_url, options.credentials_file, options.ca_file) == ("http://a,https://b", str(file), "")
    assert options.timeout_s == 2.0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("instance_id", "n" * 256, "instance_id is longer than 255 bytes"),
        ("instance_id", "a\nb", "instance_id .* can't be shown"),
        ("rack", "\0", "rack .* can't be shown"),
        ("advertised_host", "http://node-a", "advertised_host .* is no host name or address"),
        ("advertised_host", "[::1]", "advertised_host .* is no host name or address"),
    ],
)
def test_a_node_says_of_itself_only_what_others_believe(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load(NodeSettings, _NODE | {name: value})


def test_a_setting_that_is_gone_is_named_with_what_became_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("hold_max = 5\n")
    monkeypatch.setenv("STATEHOUSE_WRITE_BUFFER_BYTES", "1")

    settings = load(RouterSettings, {"application_id": "a"}, file)

    assert settings.hold_max == 1_000
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"warning: the setting hold_max is gone (it is a constant now): take it out of {file}"
    assert said[1].endswith("take it out of the variable STATEHOUSE_WRITE_BUFFER_BYTES")


def test_no_setting_that_is_gone_is_still_one() -> None:
    assert not REMOVED.keys() & {name for kind in PROCESSES.values() for name in kind.declared()}
