"""Builds what a release distributes, from the last commit: `make dist`.

Into a folder: the wheel of each platform, the pure one and the client's, bills of materials (CycloneDX) of the Python
requirements and of the proxy, a report of their licences, and checksums. All is built twice, in two folders and with
Go's cache empty the second time, and compared: it is made of nothing but the commit, the pinned requirements and the
versions of Go and Java.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hatch_build import JAR, PLATFORMS, PROGRAM, PURE, VARIABLE

ROOT: Final = Path(__file__).resolve().parent.parent

# What `pip install 'statehouse[processor,http]'` brings, at the versions that are tested.
_REQUIREMENTS: Final = "requirements/processor.txt"
_TOOLS: Final = ROOT / ".tools"
_SUMS: Final = "SHA256SUMS"
_OF_TEXTS: Final = """\
Of Python packages: as they declare it. Of Go modules: as a program recognised the text; the texts are in the wheels."""
# Nobody can say what a licence asks for that we have not read.
_UNKNOWN: Final = "UNKNOWN"
# Go's own library is no module that the tool could look up.
_LICENSE_OF_GO: Final = ("std", "BSD-3-Clause")


class DistFailed(RuntimeError):
    """The files can't be built, or differ; the text says what to do."""


def commit_time(root: Path = ROOT) -> str:
    """Return when the last commit was made, in epoch seconds."""
    return _run("git", "log", "-1", "--format=%ct", cwd=root).strip()


def export(target: Path, root: Path = ROOT) -> None:
    """Write the files of the last commit into a folder."""
    files = subprocess.run(["git", "archive", "HEAD"], cwd=root, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(files.stdout)) as archive:
        archive.extractall(target, filter="data")


def build_wheel(source: Path, target: Path, platform: str, variables: Mapping[str, str]) -> Path:
    """Build one wheel into a folder, and return it.

    Args:
        source: the folder with pyproject.toml.
        target: where the wheel goes.
        platform: a name of PLATFORMS, or PURE.
        variables: of the environment, as SOURCE_DATE_EPOCH.

    Raises:
        DistFailed: the build backend refuses; the text has what it says.

    """
    before = set(target.glob("*.whl"))
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    _run(*command, cwd=source, variables={**variables, VARIABLE: platform})
    (wheel,) = set(target.glob("*.whl")) - before
    return wheel


def build_wheels(source: Path, target: Path, variables: Mapping[str, str]) -> list[Path]:
    """Build the pure wheel, those of all platforms, and the client's, in this order.

    Raises:
        DistFailed: of build_wheel; or a wheel has no jar of our Java classes.

    """
    target.mkdir(parents=True, exist_ok=True)
    built = []
    for platform in (PURE, *PLATFORMS):
        built.append(build_wheel(source, target, platform, variables))
        with zipfile.ZipFile(built[-1]) as opened:
            if JAR not in opened.namelist():
                raise DistFailed(f"{built[-1].name} has no {JAR}: `python -m processor.jvm.jar some.jar` says why")
    return [*built, build_wheel(source / "client", target, PURE, variables)]


def write_bills(
    source: Path, target: Path, prefix: str, wheel: Path, variables: Mapping[str, str]
) -> tuple[Path, Path]:
    """Write the bills of materials of the Python requirements, and of the proxy in a wheel; return their paths."""
    python, proxy = (target / f"{prefix}.{part}.cdx.json" for part in ("python", "proxy"))
    _run(
        *(str(_TOOLS / "dist/bin/cyclonedx-py"), "requirements", "--pyproject", "pyproject.toml"),
        *("--output-reproducible", "--output-format", "JSON", "--output-file", str(python), _REQUIREMENTS),
        cwd=source,
        variables=variables,
    )
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as opened:
            program = opened.extract(PROGRAM, scratch)
        _run(
            *(str(_TOOLS / "bin/cyclonedx-gomod"), "bin", "-json", "-licenses", "-std", "-noserial", "-notimestamp"),
            *("-version", prefix.rpartition("-")[2], "-output", str(proxy), program),
            cwd=source,
            variables=variables,
        )
    return python, proxy


def write_licenses(target: Path, prefix: str, source: Path, proxy_bill: Path) -> Path:
    """Write a table of all that comes along and its licences; return its path.

    Raises:
        DistFailed: a licence is not known.

    """
    pinned = re.findall(r"^([\w.-]+)==", (source / _REQUIREMENTS).read_text(encoding="utf-8"), re.MULTILINE)
    listed = _run(
        *(str(_TOOLS / "dist/bin/pip-licenses"), f"--python={sys.executable}", "--from=mixed", "--format=json"),
        *("--packages", *pinned),
        cwd=source,
    )
    rows = [("Python", each["Name"], each["Version"], each["License"]) for each in json.loads(listed)]
    rows += [("Go, in the proxy", *row) for row in go_rows(json.loads(proxy_bill.read_text(encoding="utf-8")))]
    found = {name.lower().replace("_", "-") for _, name, _, _ in rows}
    unknown = sorted({name for _, name, _, text in rows if text == _UNKNOWN} | (set(pinned) - found))
    if unknown:
        raise DistFailed(f"the licences of {', '.join(unknown)} are not known: is .venv as `make setup` makes it?")
    path = target / f"{prefix}.licenses.md"
    path.write_text(license_table(rows), encoding="utf-8")
    return path


def go_rows(bill: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, version and licences of the components in the proxy's bill of materials."""
    known = dict([_LICENSE_OF_GO])
    return [
        (each["name"], each["version"], " AND ".join(_license_names(each)) or known.get(each["name"], _UNKNOWN))
        for each in bill.get("components", ())
    ]


def _license_names(component: Mapping[str, Any]) -> list[str]:
    """Return a component's licences: those that were declared, or else those that were found in its files."""
    for choices in (component.get("licenses"), component.get("evidence", {}).get("licenses")):
        names = [
            each.get("expression") or each["license"].get("id") or each["license"]["name"] for each in choices or ()
        ]
        if names:
            return sorted(set(names))
    return []


def license_table(rows: Iterable[Sequence[str]]) -> str:
    """Return a page with a table of what comes along."""
    lines = [" | ".join(cell.replace("|", "/").replace("\n", " ") for cell in row) for row in rows]
    head = [
        "# Licences of what comes along",
        "",
        _OF_TEXTS,
        "",
        "| kind | name | version | licence |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *(f"| {line} |" for line in lines), ""])


def differences(first: Path, second: Path) -> list[str]:
    """Return the names of the files that two folders don't have with the same bytes."""
    names = {path.name for folder in (first, second) for path in folder.iterdir()}
    return sorted(name for name in names if _content(first / name) != _content(second / name))


def checksums(folder: Path) -> str:
    """Return the lines of a folder's checksums, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != _SUMS)
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def make(target: Path, variables: Mapping[str, str]) -> None:
    """Build everything into a folder."""
    with tempfile.TemporaryDirectory(prefix="statehouse-dist-") as scratch:
        source = Path(scratch)
        export(source)
        pure, of_a_platform, *_ = build_wheels(source, target, variables)
        prefix = "-".join(pure.name.split("-")[:2])
        _, proxy_bill = write_bills(source, target, prefix, of_a_platform, variables)
        write_licenses(target, prefix, source, proxy_bill)
    (target / _SUMS).write_text(checksums(target), encoding="utf-8")


def make_twice(target: Path, variables: Mapping[str, str]) -> None:
    """Build everything twice, and copy it into a folder.

    Raises:
        DistFailed: it can't be built, or the two differ.

    """
    with tempfile.TemporaryDirectory(prefix="statehouse-dist-") as scratch:
        first, second = Path(scratch) / "first", Path(scratch) / "second"
        make(first, variables)
        print("built; building again, to compare", file=sys.stderr)
        make(second, {**variables, "GOCACHE": str(Path(scratch) / "go-cache")})
        if differing := differences(first, second):
            raise DistFailed(f"two builds of one commit differ: {', '.join(differing)}")
        shutil.copytree(first, target, dirs_exist_ok=True)


def _run(*command: str, cwd: Path, variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | dict(variables or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise DistFailed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Build twice, compare, and leave the first ones in the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "dist", help="where the files go (default: dist)")
    target = parser.parse_args().directory.resolve()
    if _run("git", "status", "--porcelain", cwd=ROOT).strip():
        print("what isn't committed is left out", file=sys.stderr)
    try:
        make_twice(target, {"SOURCE_DATE_EPOCH": commit_time()})
    except DistFailed as error:
        sys.exit(str(error))
    print(f"in {target}:\n{(target / _SUMS).read_text(encoding='utf-8')}", end="")


if __name__ == "__main__":
    main()
