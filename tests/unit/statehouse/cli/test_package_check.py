"""Another's package of one of our names is noticed before its code runs as ours."""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import invalidate_caches
from pathlib import Path

import pytest

from statehouse.cli.package_check import ForeignPackage, ensure_none_in, ensure_own
from tests.support.statehouse import ROOT, statehouse

# A name that nobody has, so that no module of this process is in the way.
NAME = "own_package_of_a_test"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as of installed packages, with ours in it."""
    folder = tmp_path / "site"
    (folder / NAME).mkdir(parents=True)
    (folder / NAME / "__init__.py").write_text('"""Ours."""\n')
    # Without the many that are installed, which take long to look through.
    monkeypatch.setattr(sys, "path", [str(folder), *(path for path in sys.path if "site-packages" not in path)])
    return folder


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path, str], None]:
    """Write the record of a distribution that has installed what is there of the package."""

    def install(folder: Path, name: str) -> None:
        info = folder / f"{name}-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        content = (folder / NAME / "__init__.py").read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        (info / "RECORD").write_text(f"{NAME}/__init__.py,sha256={digest},{len(content)}\n")
        if str(folder) not in sys.path:
            monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
        invalidate_caches()

    return install


Install = Callable[[Path, str], None]


def test_ours_is_ours(site: Path, install: Install) -> None:
    ensure_own(NAME, site)
    install(site, "statehouse")
    ensure_own(NAME, site)
    ensure_own("a_package_that_is_not_installed", site)


@pytest.mark.parametrize("package", ["processor", "query_service", "router"])
def test_those_of_this_checkout_are_ours(package: str) -> None:
    ensure_own(package)


@pytest.mark.feature("another-distribution-package")
def test_one_that_comes_earlier_is_named_with_its_distribution(site: Path, tmp_path: Path, install: Install) -> None:
    earlier = tmp_path / "earlier"
    (earlier / NAME).mkdir(parents=True)
    (earlier / NAME / "__init__.py").touch()
    install(earlier, "another-one")
    with pytest.raises(
        ForeignPackage, match=f"brings {earlier}/{NAME}/__init__.py, which another-one installed, and not"
    ):
        ensure_own(NAME, site)


@pytest.mark.feature("another-distribution-package")
def test_one_that_was_installed_over_ours_is_named(site: Path, install: Install) -> None:
    install(site, "statehouse")
    (site / NAME / "__init__.py").write_text('"""Theirs."""\n')
    with pytest.raises(ForeignPackage, match="is not as Statehouse has installed it: it was changed by hand"):
        ensure_own(NAME, site)
    install(site, "another-one")
    with pytest.raises(ForeignPackage, match="another-one has a file of this name, too"):
        ensure_own(NAME, site)


@pytest.mark.feature("another-distribution-package")
def test_a_module_in_the_working_directory_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "router.py").write_text("raise SystemExit('the code of a stranger')\n")
    command = [sys.executable, "-m", "statehouse.cli", "router", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60, env=os.environ
    )
    assert done.returncode == 2
    assert f"brings {tmp_path}/router.py, which no installed distribution has brought" in done.stderr
    assert f"{ROOT}/router" in done.stderr
    assert "stranger" not in done.stderr
    assert statehouse(tmp_path, "status", "--help").code == 0, "other commands go on"


@pytest.mark.feature("another-distribution-package")
@pytest.mark.parametrize(
    ("command", "file"),
    [
        ("up --kafka-port 0", "router/__init__.py"),
        ("up --kafka-port 0", "processor.py"),
        ("check hello.topology", "router/__init__.py"),
        ("process hello.topology", "processor.py"),
        ("reset hello.topology --to earliest", "processor.py"),
        ("topics check hello.topology", "router/__init__.py"),
    ],
)
def test_nothing_is_run_where_a_file_of_one_s_own_hides_ours(tmp_path: Path, command: str, file: str) -> None:
    hiding = tmp_path / file
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("raise SystemExit('the code of a stranger')\n")
    ran = installed(tmp_path, *command.split())
    assert ran.returncode == 2, ran.stderr
    package = file.removesuffix(".py").removesuffix("/__init__")
    assert f"{hiding} hides Statehouse's own package `{package}`" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "stranger" not in ran.stderr
    assert not (tmp_path / ".statehouse").exists(), "nothing was started"


@pytest.mark.feature("another-distribution-package")
def test_a_folder_alone_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "index.js").touch()
    ensure_none_in(tmp_path)
    ran = installed(tmp_path, "check", "hello.topology")
    assert "there is no application 'hello.topology'" in ran.stderr


def installed(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as it is installed: as a program of another folder, whose place Python imports from first."""
    command = [str(Path(sys.executable).with_name("statehouse")), *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=60)
