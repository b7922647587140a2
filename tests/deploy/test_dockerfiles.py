"""The Dockerfiles name only what exists: there is no container engine where the tests run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.files import DEPLOY, DOCKERFILES, ROOT, Image, read_image, services

_INSTRUCTIONS: Final = {
    *("FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
}
_GO: Final = "golang:{}-bookworm".format(
    ".".join(re.findall(r"^go (\d+)\.(\d+)", (ROOT / "dataplane" / "go.mod").read_text(), re.MULTILINE)[0])
)
_PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Which extras each image's lock is made of.
_EXTRAS: Final = {"service": ("service", "http", "tracing"), "processor": ("processor", "http", "tracing")}


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.name)
def image(request: pytest.FixtureRequest) -> Image:
    return read_image(request.param)


def test_both_images_are_there_and_used() -> None:
    assert {path.name for path in DOCKERFILES} == {"Dockerfile.service", "Dockerfile.processor"}
    assert {service.image.path for service in services().values() if service.image} == set(DOCKERFILES)


def test_has_known_instructions_only(image: Image) -> None:
    assert {each.name for each in image.instructions} <= _INSTRUCTIONS
    assert image.instructions[0].name == "FROM"
    bases = [each.rest.split()[0] for each in image.instructions if each.name == "FROM"]
    assert all(base.startswith("python:3.11-slim") or base == _GO for base in bases)
    assert bases[-1].startswith("python:")


def test_copied_sources_exist_and_are_sent_to_the_builder(image: Image) -> None:
    kept = [
        line.removeprefix("!")
        for line in image.path.with_name(f"{image.path.name}.dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    sources = list(_copied(image))
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(Path(source).parts[0], pattern) for pattern in kept), f"{source} is in .dockerignore"


def test_stages_that_are_copied_from_exist(image: Image) -> None:
    froms = [each.rest.split()[0] for each in image.instructions if each.name == "COPY" and "--from=" in each.rest]
    assert {each.removeprefix("--from=") for each in froms} == set(image.stages)


def test_copies_every_package_of_the_wheel_and_its_metadata(image: Image) -> None:
    copied = set(_copied(image))
    assert copied >= set(_PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    assert copied >= {"pyproject.toml", _PYPROJECT["project"]["readme"], *_PYPROJECT["project"]["license-files"]}


def test_downloads_only_what_is_pinned_by_hash(image: Image) -> None:
    steps = [step.strip() for each in image.instructions if each.name == "RUN" for step in each.rest.split("&&")]
    for step in (step for step in steps if re.search(r"\bpip (install|wheel|download)\b", step)):
        is_source_alone = "--no-deps" in step and "--no-build-isolation" in step and step.endswith(" .")
        assert is_source_alone or "--require-hashes" in step or "--no-index" in step, step
        for lock in re.findall(r"-r (\S+)", step):
            assert "--require-hashes" in step
            assert (ROOT / _origin(lock)).is_file(), lock


def test_runs_as_nobody_special(image: Image) -> None:
    user = image.one("USER").rest
    assert user.isdigit(), "an orchestrator can tell only of a number that it is not root"
    assert any(f"useradd --uid {user} " in each.rest for each in image.last_stage if each.name == "RUN")
    assert image.one("VOLUME").rest == "/var/lib/statehouse"


def test_entry_point_is_a_command_of_the_package(image: Image) -> None:
    (command,) = image.entrypoint
    assert command in _PYPROJECT["project"]["scripts"]
    (script,) = entry_points(group="console_scripts", name=command)
    assert callable(script.load())


def test_health_check_runs_a_file_of_the_image(image: Image) -> None:
    if image.healthcheck:
        assert image.healthcheck[1] in _copied(image)


@pytest.mark.parametrize("name", _EXTRAS)
def test_lock_holds_the_extras_at_the_versions_tested(name: str) -> None:
    lock = (ROOT / "requirements" / f"{name}.txt").read_text()
    locked, tested = _pins(lock), _pins((ROOT / "requirements" / "dev.txt").read_text())
    assert locked.items() <= tested.items(), "lock again: the image would run what no test has run"
    assert _wanted(_EXTRAS[name]) <= locked.keys()
    assert "pyspark" not in locked or name == "processor"


def test_build_lock_builds_with_the_backend_tested() -> None:
    locked = _pins((DEPLOY / "build-requirements.txt").read_text())
    tested = _pins((ROOT / "requirements" / "dev.txt").read_text())
    assert {name: tested[name] for name in locked.keys() & tested.keys()} == {
        name: locked[name] for name in locked.keys() & tested.keys()
    }
    assert {Requirement(each).name for each in _PYPROJECT["build-system"]["requires"]} <= locked.keys()


@pytest.mark.parametrize("path", [*(ROOT / "requirements").glob("*.txt"), DEPLOY / "build-requirements.txt"], ids=str)
def test_locks_hold_hashes_and_no_addresses(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE), "an option in a lock file holds for everybody who installs from it"
    for entry in re.split(r"\n(?=[^\s#])", text.strip()):
        assert "--hash=sha256:" in entry, entry.splitlines()[0]


def _copied(image: Image) -> Iterator[str]:
    for each in image.instructions:
        if each.name == "COPY" and "--from=" not in each.rest:
            yield from each.argv[:-1]


def _origin(path: str) -> str:
    """Where the repository has a file of the build stage's requirements/."""
    return "deploy/build-requirements.txt" if path.endswith("/build-requirements.txt") else path


def _pins(lock: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, re.MULTILINE))


def _wanted(extras: tuple[str, ...]) -> set[str]:
    """Names of what the package with these extras asks for, extras of extras included."""
    project = _PYPROJECT["project"]
    client = tomllib.loads((ROOT / "client" / "pyproject.toml").read_text())["project"]
    found, waiting = set(), [*client["dependencies"]]
    for extra in extras:
        waiting += project["optional-dependencies"][extra]
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.name == project["name"]:
            for extra in requirement.extras:
                waiting += project["optional-dependencies"][extra]
        else:
            found.add(str(canonicalize_name(requirement.name)))
    return found
