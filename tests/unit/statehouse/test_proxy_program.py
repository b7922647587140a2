"""Which program is the proxy, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from statehouse.errors import ConfigurationError
from statehouse.link import proxy
from statehouse.link.proxy import AUTO, NONE, PROGRAM, find_program, proxy_for
from statehouse.settings import ServerSettings


@pytest.fixture(autouse=True)
def _nothing_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def program(folder: Path) -> Path:
    path = folder / PROGRAM
    path.write_text("")
    path.chmod(0o755)
    return path


@pytest.mark.feature("package-without-proxy")
def test_the_packages_own_comes_before_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_program(AUTO) is None
    on_path = program(tmp_path)
    assert find_program(AUTO) == str(on_path)
    (tmp_path / "package").mkdir()
    packaged = program(tmp_path / "package")
    monkeypatch.setattr(proxy, "_PACKAGED", packaged)
    assert find_program(AUTO) == str(packaged)
    assert find_program(str(on_path)) == str(on_path), "one that is named is taken"
    assert find_program(NONE) is None
    packaged.chmod(0o644)
    assert find_program(AUTO) == str(on_path)


def test_one_that_is_named_must_exist() -> None:
    with pytest.raises(ConfigurationError, match="there is no program /nowhere"):
        find_program("/nowhere")


@pytest.mark.feature("package-without-proxy")
@pytest.mark.parametrize(("setting", "level"), [(AUTO, "warning"), (NONE, "info")])
def test_what_is_lacking_is_said_once_unless_it_is_wanted_so(setting: str, level: str) -> None:
    with capture_logs() as lines:
        assert (
            proxy_for(ServerSettings(application_id="tests", proxy=setting), "127.0.0.1:0", lambda _error: None) is None
        )
    (line,) = lines
    assert line["log_level"] == level
    assert "grpcio" in str(line)
    assert ("install the wheel of this platform" in str(line)) == (setting == AUTO)
