"""Releases: check that RELEASES.toml, pyproject.toml and CHANGELOG.md agree, and prepare the next release.

`check` fails when they disagree; `contract` prints the file of the newest release's contract; `prepare VERSION` writes
what the release's commit contains, with the project's address (`--url`) in the metadata of both distributions;
`name-commit` names that commit, once it is made. See docs/releasing.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent

_UNRELEASED = "## Unreleased"
_HEADING = re.compile(r"^## (?P<version>\d+\.\d+\.\d+) \((?P<date>\d{4}-\d{2}-\d{2})\)$", re.MULTILINE)
_PROJECT_VERSION = re.compile(r'^version = "(?P<version>[^"]+)"$', re.MULTILINE)
_CLIENT = re.compile(r"(?<=statehouse-client==)[\d.]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
# The place of the table in a pyproject.toml, or the table of an earlier release.
_URLS = re.compile(r"^# \[project\.urls\]: .*$|^\[project\.urls\]\nRepository = .*$", re.MULTILINE)
# Reserved, so that they are nobody's (RFC 2606, RFC 6761).
_NOBODYS = re.compile(r"(?:^|\.)(?:example(?:\.(?:com|net|org))?|invalid|localhost|test)$")


@dataclass(frozen=True, slots=True)
class Release:
    """A version that was released."""

    version: str
    date: str
    contract: str
    commit: str | None = None


class Releases:
    """The files in a folder that describe releases."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.index = root / "RELEASES.toml"
        self.changelog = root / "CHANGELOG.md"
        self.project = root / "pyproject.toml"
        self.projects = (self.project, root / "client" / "pyproject.toml")

    def all(self) -> list[Release]:
        """Return what was released, the newest first."""
        entries = tomllib.loads(self.index.read_text(encoding="utf-8"))["release"]
        return [Release(**{**each, "date": str(each["date"])}) for each in entries]

    def newest(self) -> Release:
        """Return the last release."""
        return self.all()[0]

    def problems(self) -> list[str]:
        """Return what the files disagree about."""
        releases = self.all()
        newest, *older = releases
        versions = [_numbers(each.version) for each in releases]
        found = [] if versions == sorted(set(versions), reverse=True) else ["RELEASES.toml: the newest must come first"]
        if (version := self.project_version()) != newest.version:
            found.append(f"pyproject.toml says {version}, the newest release is {newest.version}")
        if self.headings() != [(each.version, each.date) for each in releases]:
            found.append("CHANGELOG.md and RELEASES.toml list other versions or dates, or in another order")
        found += [f"{each.version}: there is no {each.contract}" for each in releases if not self._has_contract(each)]
        found += [f"{each.version}: its commit is not named" for each in older if each.commit is None]
        found += [problem for each in releases if each.commit is not None for problem in self._commit_problems(each)]
        if newest.commit is None:
            found += [f"{newest.version}: {problem}" for problem in self._url_problems()]
        if newest.commit is None and self._has_later_commit(newest):
            found.append(f"{newest.version}: its commit is known by now, run `make release-commit`")
        return found

    def project_version(self) -> str:
        """Return the version that the package would be built with."""
        return _project_version(self.project.read_text(encoding="utf-8"))

    def headings(self) -> list[tuple[str, str]]:
        """Return version and date of each release in the changelog."""
        text = self.changelog.read_text(encoding="utf-8")
        return [(each["version"], each["date"]) for each in _HEADING.finditer(text)]

    def url(self, project: Path) -> str:
        """Return the project's address in the metadata of a distribution; empty if none is given."""
        metadata = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
        return str(metadata.get("urls", {}).get("Repository", ""))

    def prepare(self, version: str, date: str, url: str = "") -> None:
        """Write what the commit of a release contains: the version, its headings, the contract, the entry, the address.

        Without `url` the address of the release before is kept. If there is none either, the metadata name none.
        """
        releases, text = self.all(), self.changelog.read_text(encoding="utf-8")
        if not re.fullmatch(r"\d+\.\d+\.\d+", version) or _numbers(version) <= _numbers(releases[0].version):
            sys.exit(f"{version} is not a version after {releases[0].version}")
        if releases[0].commit is None:
            sys.exit(f"{releases[0].version}: its commit is not named, run `make release-commit` first")
        if f"\n{_UNRELEASED}\n" not in text:
            sys.exit(f"CHANGELOG.md has no heading {_UNRELEASED!r}: there is nothing to release")
        address = url or self.url(self.project)
        if address:
            _check_url(address)
        else:
            print("the metadata will name no address; before packages are published: make release … URL=https://…")
        contract = f"protos/releases/{version}.binpb"
        _build(self.root, self.root / contract)
        self.changelog.write_text(text.replace(f"\n{_UNRELEASED}\n", f"\n## {version} ({date})\n"), encoding="utf-8")
        project = self.project.read_text(encoding="utf-8")
        project = _CLIENT.sub(version, _PROJECT_VERSION.sub(f'version = "{version}"', project, count=1))
        self.project.write_text(project, encoding="utf-8")
        for each in self.projects if address else ():
            write_url(each, address)
        head, *entries = self.index.read_text(encoding="utf-8").split("[[release]]\n")
        entry = f'version = "{version}"\ndate = {date}\ncontract = "{contract}"\n\n'
        self.index.write_text("[[release]]\n".join([head, entry, *entries]), encoding="utf-8")

    def name_commit(self) -> str:
        """Name the newest release's commit, which put its version into RELEASES.toml; return it."""
        newest = self.newest()
        if newest.commit is not None:
            sys.exit(f"{newest.version}: its commit is named already")
        commit = self._git("log", "-1", "--format=%H", f'-Sversion = "{newest.version}"', "--", "RELEASES.toml")
        if not commit:
            sys.exit(f"{newest.version}: commit the release first")
        if not self._is_contract_of(newest, commit):
            sys.exit(f"{newest.contract} is not what buf builds from protos/ at {commit}: prepare and commit again")
        text = self.index.read_text(encoding="utf-8")
        dated = f"date = {newest.date}\n"
        self.index.write_text(text.replace(dated, f'{dated}commit = "{commit}"\n', 1), encoding="utf-8")
        return commit

    def _url_problems(self) -> list[str]:
        """Return in what the metadata of the distributions disagree about the project's address."""
        found = {str(each.relative_to(self.root)): self.url(each) for each in self.projects}
        return [] if len(set(found.values())) == 1 else [f"{' and '.join(found)} name different addresses"]

    def _has_contract(self, release: Release) -> bool:
        return (self.root / release.contract).is_file()

    def _commit_problems(self, release: Release) -> list[str]:
        commit = release.commit or ""
        if not _COMMIT.fullmatch(commit):
            return [f"{release.version}: {commit!r} is not the full name of a commit"]
        if not (self.root / ".git").exists():
            return []
        if not self._git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", check=False):
            # A shallow clone has few commits, so that it can't tell.
            is_shallow = self._git("rev-parse", "--is-shallow-repository") == "true"
            return [] if is_shallow else [f"{release.version}: there is no commit {commit}"]
        version = _project_version(self._git("show", f"{commit}:pyproject.toml"))
        return [] if version == release.version else [f"{release.version}: at {commit} the version is {version}"]

    def _has_later_commit(self, release: Release) -> bool:
        """Whether the release is committed, and something else after it."""
        if not (self.root / ".git").exists():
            return False
        commit = self._git("log", "-1", "--format=%H", f'-Sversion = "{release.version}"', "--", "RELEASES.toml")
        return commit not in ("", self._git("rev-parse", "HEAD"))

    def _is_contract_of(self, release: Release, commit: str) -> bool:
        files = subprocess.run(
            ["git", "archive", commit, "buf.yaml", "protos"], cwd=self.root, stdout=subprocess.PIPE, check=True
        )
        with tempfile.TemporaryDirectory() as scratch, tarfile.open(fileobj=io.BytesIO(files.stdout)) as archive:
            archive.extractall(scratch, filter="data")
            built = _build(Path(scratch), Path(scratch) / "contract.binpb")
            return built == (self.root / release.contract).read_bytes()

    def _git(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run(["git", *arguments], cwd=self.root, stdout=subprocess.PIPE, text=True, check=check)
        return done.stdout.strip()


def write_url(project: Path, url: str) -> None:
    """Write the project's address into a pyproject.toml, in the place of the comment, or of the earlier address."""
    text, count = _URLS.subn(lambda _: f'[project.urls]\nRepository = "{url}"', project.read_text(encoding="utf-8"))
    if count != 1:
        sys.exit(f"{project} must have one line `# [project.urls]: ...`, or one table with Repository: it has {count}")
    project.write_text(text, encoding="utf-8")


def _check_url(url: str) -> None:
    """Exit if a release can't name this address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_plain = re.fullmatch(r"https://[\w.:/~-]+", url) is not None
    if not is_plain or "." not in host or _NOBODYS.search(host):
        sys.exit(f"{url} can't be the project's address: give https:// with a host that everybody reaches")


def _project_version(pyproject: str) -> str:
    return str(tomllib.loads(pyproject)["project"]["version"])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _build(root: Path, target: Path) -> bytes:
    """Build the contract into a file; return what is in it."""
    target.parent.mkdir(exist_ok=True)
    subprocess.run(["buf", "build", "-o", str(target)], cwd=root, check=True)
    return target.read_bytes()


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="fail if the files disagree")
    commands.add_parser("contract", help="print the file of the newest release's contract")
    commands.add_parser("name-commit", help="name the commit of the newest release")
    prepare = commands.add_parser("prepare", help="write what the commit of a release contains")
    prepare.add_argument("version")
    prepare.add_argument("--url", default="", help="the address of the project's repository, if it is new or another")
    options, releases = parser.parse_args(), Releases()
    if options.command == "contract":
        print(releases.newest().contract)
    elif options.command == "prepare":
        releases.prepare(options.version, dt.datetime.now(tz=dt.UTC).date().isoformat(), options.url)
    elif options.command == "name-commit":
        print(releases.name_commit())
    elif problems := releases.problems():
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
