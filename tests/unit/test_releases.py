from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tools import releases as module
from tools.releases import Releases

_ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = """\
[project]
name = "thing"
version = "{0}"
dependencies = ["statehouse-client=={0}"]

[project.urls]
Repository = "https://forge.here/it"

[tool.other]
version = "9"
"""
_TABLE: Final = '[project.urls]\nRepository = "https://forge.here/it"'
_ENTRY: Final = '[[release]]\nversion = "{0}"\ndate = 2026-01-02\n{1}contract = "protos/releases/{0}.binpb"\n'


class Repository(Releases):
    """A small one with a release 0.1.0, whose buf writes the contract's text."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._run("git", "init", "-q")
        (root / "buf.yaml").write_text("")
        (root / "protos/releases").mkdir(parents=True)
        (root / "protos/thing.proto").write_text("contract 1")
        (root / "protos/releases/0.1.0.binpb").write_text("contract 1")
        self.project.write_text(_PROJECT.format("0.1.0"))
        (root / "client").mkdir()
        (root / "client/pyproject.toml").write_text(_PROJECT.format("0.1.0"))
        self.changelog.write_text("# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0 (2026-01-02)\n\n- first\n")
        self.index.write_text("# Releases.\n\n" + _ENTRY.format("0.1.0", ""))

    def commit(self) -> str:
        """Commit all; return the commit."""
        self._run("git", "add", "-A")
        self._run("git", "-c", "user.name=Ann", "-c", "user.email=ann@example.org", "commit", "-q", "-m", "x")
        return self._git("rev-parse", "HEAD")

    def replace(self, path: Path, old: str, new: str) -> None:
        """Change a file."""
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def _run(self, *command: str) -> None:
        subprocess.run(command, cwd=self.root, check=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    def build(root: Path, target: Path) -> bytes:
        target.write_text((root / "protos/thing.proto").read_text())
        return target.read_bytes()

    monkeypatch.setattr(module, "_build", build)
    return Repository(tmp_path)


def test_this_repository_agrees_with_itself() -> None:
    assert Releases().problems() == []


def test_every_contract_belongs_to_a_release() -> None:
    kept = {str(path.relative_to(_ROOT)) for path in (_ROOT / "protos").rglob("*.binpb")}
    assert kept == {each.contract for each in Releases().all()}


def test_a_release_is_named_by_the_commit_after_it(repository: Repository) -> None:
    first = repository.commit()
    assert repository.problems() == []
    assert repository.name_commit() == first
    assert repository.newest().commit == first
    repository.commit()
    assert repository.problems() == []


def test_a_release_without_its_commit_is_a_problem_once_there_is_a_later_one(repository: Repository) -> None:
    repository.commit()
    (repository.root / "more").write_text("")
    repository.commit()
    assert repository.problems() == ["0.1.0: its commit is known by now, run `make release-commit`"]


def test_prepare_writes_what_the_commit_of_a_release_contains(repository: Repository) -> None:
    repository.commit()
    first = repository.name_commit()
    repository.replace(repository.root / "protos/thing.proto", "1", "2")
    repository.commit()
    repository.prepare("0.2.0", "2026-03-04")
    assert repository.problems() == []
    assert repository.project.read_text() == _PROJECT.format("0.2.0")
    assert repository.headings() == [("0.2.0", "2026-03-04"), ("0.1.0", "2026-01-02")]
    assert [(each.version, each.date, each.commit) for each in repository.all()] == [
        ("0.2.0", "2026-03-04", None),
        ("0.1.0", "2026-01-02", first),
    ]
    assert (repository.root / repository.newest().contract).read_text() == "contract 2"
    second = repository.commit()
    assert repository.problems() == []
    assert repository.name_commit() == second


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9", "0.2", "v0.2.0"])
def test_prepare_refuses_what_is_not_a_later_version(repository: Repository, version: str) -> None:
    repository.commit()
    repository.name_commit()
    with pytest.raises(SystemExit, match="not a version after"):
        repository.prepare(version, "2026-03-04")


def test_prepare_refuses_to_leave_a_release_unnamed(repository: Repository) -> None:
    repository.commit()
    with pytest.raises(SystemExit, match="not named"):
        repository.prepare("0.2.0", "2026-03-04")


def test_prepare_refuses_a_release_of_nothing(repository: Repository) -> None:
    repository.commit()
    repository.name_commit()
    repository.replace(repository.changelog, "## Unreleased", "")
    with pytest.raises(SystemExit, match="nothing to release"):
        repository.prepare("0.2.0", "2026-03-04")


def test_a_contract_that_is_not_the_commits_is_refused(repository: Repository) -> None:
    repository.replace(repository.root / "protos/thing.proto", "1", "2")
    repository.commit()
    with pytest.raises(SystemExit, match="not what buf builds"):
        repository.name_commit()


def test_a_commit_is_named_once_and_after_it_is_made(repository: Repository) -> None:
    (repository.root / "RELEASES.toml").rename(repository.root / "later")
    repository.commit()
    (repository.root / "later").rename(repository.root / "RELEASES.toml")
    with pytest.raises(SystemExit, match="commit the release first"):
        repository.name_commit()
    repository.commit()
    repository.name_commit()
    with pytest.raises(SystemExit, match="named already"):
        repository.name_commit()


def test_tells_what_files_disagree_about(repository: Repository) -> None:
    commit = repository.commit()
    repository.replace(repository.project, "0.1.0", "0.1.1")
    repository.replace(repository.changelog, "2026-01-02", "2026-01-03")
    (repository.root / "protos/releases/0.1.0.binpb").unlink()
    repository.replace(repository.index, "contract", f'commit = "{commit[:-1]}"\ncontract')
    assert repository.problems() == [
        "pyproject.toml says 0.1.1, the newest release is 0.1.0",
        "CHANGELOG.md and RELEASES.toml list other versions or dates, or in another order",
        "0.1.0: there is no protos/releases/0.1.0.binpb",
        f"0.1.0: '{commit[:-1]}' is not the full name of a commit",
    ]


def test_tells_of_a_commit_that_is_another_versions_or_nowhere(repository: Repository) -> None:
    repository.replace(repository.project, "0.1.0", "0.0.9")
    other = repository.commit()
    repository.replace(repository.project, "0.0.9", "0.1.0")
    repository.replace(repository.index, "contract", f'commit = "{other}"\ncontract')
    assert repository.problems() == [f"0.1.0: at {other} the version is 0.0.9"]
    repository.replace(repository.index, other, "0" * 40)
    assert repository.problems() == [f"0.1.0: there is no commit {'0' * 40}"]


def test_tells_of_an_older_release_without_a_commit_and_of_the_order(repository: Repository) -> None:
    repository.commit()
    repository.index.write_text(_ENTRY.format("0.1.0", "") + _ENTRY.format("0.2.0", ""))
    found = repository.problems()
    assert "RELEASES.toml: the newest must come first" in found
    assert "0.2.0: its commit is not named" in found


_PLACE: Final = "# [project.urls]: `make release` puts it here."
_URL: Final = "https://one.two/three"


def test_prepare_writes_the_address_into_both_distributions_and_later_ones_keep_it(repository: Repository) -> None:
    for path in repository.projects:
        repository.replace(path, _TABLE, _PLACE)
    repository.commit()
    repository.name_commit()
    repository.prepare("0.2.0", "2026-03-04", _URL)
    assert [repository.url(each) for each in repository.projects] == [_URL, _URL]
    repository.commit()
    repository.name_commit()
    repository.replace(repository.changelog, "# Changelog\n", "# Changelog\n\n## Unreleased\n")
    repository.prepare("0.3.0", "2026-03-05")
    assert [repository.url(each) for each in repository.projects] == [_URL, _URL]
    assert repository.problems() == []


def test_a_release_without_an_address_says_so_and_its_metadata_name_none(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in repository.projects:
        repository.replace(path, _TABLE, _PLACE)
    repository.commit()
    repository.name_commit()
    repository.prepare("0.2.0", "2026-03-04")
    assert "the metadata will name no address" in capsys.readouterr().out
    assert [repository.url(each) for each in repository.projects] == ["", ""]
    assert repository.problems() == []


def test_distributions_that_name_different_addresses_are_a_problem(repository: Repository) -> None:
    repository.commit()
    repository.replace(repository.root / "client/pyproject.toml", "forge", "other")
    assert repository.problems() == ["0.1.0: pyproject.toml and client/pyproject.toml name different addresses"]


@pytest.mark.parametrize(
    "url",
    [
        "http://one.two/three",
        "https://",
        "https://one",
        "https://u:p@one.two",
        "https://one.two/?a",
        'https://one.two/"',
    ]
    + [f"https://{host}/it" for host in ("example.org", "it.example", "a.localhost", "host.invalid", "host.test")],
)
def test_an_address_that_is_nobodys_is_refused(repository: Repository, url: str) -> None:
    repository.commit()
    repository.name_commit()
    with pytest.raises(SystemExit, match="can't be the project's address"):
        repository.prepare("0.2.0", "2026-03-04", url)


@pytest.mark.parametrize("name", ["pyproject.toml", "client/pyproject.toml"])
def test_the_address_is_all_that_it_changes_of_our_own_metadata(tmp_path: Path, name: str) -> None:
    project = tmp_path / "pyproject.toml"
    project.write_text((_ROOT / name).read_text())
    before = tomllib.loads(project.read_text())
    for url in (_URL, f"{_URL}/four"):
        module.write_url(project, url)
        after = tomllib.loads(project.read_text())
        assert after["project"].pop("urls") == {"Repository": url}
        before["project"].pop("urls", None)
        assert after == before
