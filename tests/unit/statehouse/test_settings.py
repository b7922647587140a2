"""Settings: precedence, sources, and errors that name the flag and the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from statehouse.errors import ConfigurationError
from statehouse.settings import NodeSettings, RouterSettings, load, sources


def test_flag_beats_environment_beats_file_beats_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text('application_id = "file"\nrouter_port = 1\nrequest_timeout_ms = 2\nnode_port = 9\n')
    monkeypatch.setenv("STATEHOUSE_CONFIG", str(file))
    monkeypatch.setenv("STATEHOUSE_ROUTER_PORT", "3")
    monkeypatch.setenv("STATEHOUSE_BOOTSTRAP", "env:1")
    flags = {"bootstrap": "flag:1", "log_level": None}
    settings = load(RouterSettings, flags)
    assert (settings.bootstrap, settings.router_port, settings.request_timeout_ms) == ("flag:1", 3, 2)
    found = {name: source for name, _, source in sources(settings, flags)}
    assert found["bootstrap"] == "flag"
    assert found["router_port"] == "environment"
    assert found["application_id"] == "file"
    assert found["log_level"] == "default"


def test_missing_value_names_flag_and_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATEHOUSE_APPLICATION_ID", raising=False)
    with pytest.raises(ConfigurationError, match=r"--application-id, STATEHOUSE_APPLICATION_ID"):
        load(RouterSettings, {})


def test_fields_are_checked_against_each_other() -> None:
    base = {"application_id": "a", "instance_id": "n"}
    with pytest.raises(ConfigurationError, match="at least 3 x heartbeat_interval_ms"):
        load(NodeSettings, base | {"heartbeat_interval_ms": 1000, "session_timeout_ms": 2999})
    with pytest.raises(ConfigurationError, match="at least 3 x confirm_interval_ms"):
        load(NodeSettings, base | {"confirm_interval_ms": 4_000})
    with pytest.raises(ConfigurationError, match="set advertised_host"):
        load(NodeSettings, base | {"bind_host": "0.0.0.0"})
    load(NodeSettings, base | {"bind_host": "0.0.0.0", "advertised_host": "node-1"})
    with pytest.raises(ConfigurationError, match="half of it at most"):
        load(NodeSettings, base | {"block_cache_bytes": 32 * 1024 * 1024})


def test_unreadable_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATEHOUSE_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigurationError, match=r"none\.toml"):
        load(RouterSettings, {"application_id": "a"})
