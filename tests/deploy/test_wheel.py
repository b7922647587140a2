"""The wheels: what a user installs."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Final

import pytest

from hatch_build import EXAMPLES, JAR, LICENSES, PLATFORMS, PROGRAM, PURE, VARIABLE
from tests.deploy.files import ROOT
from tools.dist import DistFailed, build_wheel, build_wheels, commit_time, differences, export

_PYPROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())
_JVM: Final = ROOT / "processor" / "jvm"
_PACKAGES: Final = _PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The one that `pip wheel` builds without being told anything: the pure one."""
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", str(directory), str(ROOT)], check=True, timeout=120)
    (path,) = directory.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_string(wheel.read(name).decode())


def test_has_each_package_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    typed = {
        f"{package}/py.typed" for package in _PACKAGES if package != "statehouse"
    }  # the client's wheel has this one
    assert typed <= set(wheel.namelist())
    assert {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" not in name} == set(_PACKAGES)


def test_has_the_licence(wheel: zipfile.ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
    assert wheel.read(name) == (ROOT / "LICENSE").read_bytes()


def test_says_what_it_is(metadata: Message) -> None:
    assert metadata["Version"] == _PYPROJECT["project"]["version"]
    assert metadata["Summary"] == _PYPROJECT["project"]["description"]
    assert metadata.get_all("Classifier") == _PYPROJECT["project"]["classifiers"]


@pytest.mark.feature("wheels-linux-x86")
def test_is_pure_and_has_no_proxy(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("-py3-none-any.whl")
    assert {PROGRAM, LICENSES} & set(wheel.namelist()) == set()


@pytest.mark.feature("wheel-alone-empty")
def test_has_the_examples_that_it_offers_as_data(wheel: zipfile.ZipFile) -> None:
    offered = _PYPROJECT["project"]["entry-points"]["statehouse.applications"].values()
    modules = {value.partition(":")[0].replace(".", "/").removeprefix("examples/") for value in offered}
    names = set(wheel.namelist())
    assert {f"{EXAMPLES}/{module}.py" for module in modules} <= names
    assert {f"{EXAMPLES}/{name}" for name in ("__init__.py", "http_service.py", "leaderboard/sample.py")} <= names
    assert not any("pyproject.toml" in name or "__pycache__" in name for name in names)


def test_has_the_java_classes_and_their_sources(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {f"processor/jvm/{path.relative_to(_JVM)}" for path in _JVM.rglob("*.java")} <= names
    with zipfile.ZipFile(io.BytesIO(wheel.read(JAR))) as jar:
        assert "statehouse/files/LocalFiles.class" in jar.namelist()


def test_without_java_a_wheel_has_their_sources_alone_and_is_no_release(tmp_path: Path) -> None:
    without_java = {"PATH": "/nowhere", "JAVA_HOME": ""}
    with zipfile.ZipFile(build_wheel(ROOT, tmp_path / "pure", PURE, without_java)) as opened:
        assert JAR not in opened.namelist()
    with pytest.raises(DistFailed, match=f"has no {JAR}: .* says why"):
        build_wheels(ROOT, tmp_path / "dist", without_java)


def test_a_platform_that_is_none_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(DistFailed, match=f"{VARIABLE}=plan9: there is no such platform, give linux-amd64, .* or pure"):
        build_wheel(ROOT, tmp_path, "plan9", {})


def test_without_go_a_platforms_wheel_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(DistFailed, match="no `go` on the PATH: install Go"):
        build_wheel(ROOT, tmp_path, "linux-amd64", {"PATH": "/nowhere"})


@pytest.mark.feature("wheels-linux-x86")
def test_an_editable_install_needs_no_go_and_copies_nothing(tmp_path: Path) -> None:
    program = f"from hatchling.build import build_editable; build_editable({str(tmp_path)!r})"
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "/nowhere", VARIABLE: "linux-amd64"},
        check=True,
        timeout=60,
    )
    (path,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        assert [name for name in opened.namelist() if ".dist-info/" not in name] == ["_editable_impl_statehouse.pth"]


@pytest.mark.feature("wheels-linux-x86")
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_each_wheel_has_the_same_bytes_twice_and_a_static_proxy(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for number, target in enumerate((first, second)):
        source = tmp_path / f"source-{number}"
        export(source)
        cold = {"GOCACHE": str(tmp_path / f"cache-{number}"), "SOURCE_DATE_EPOCH": commit_time()}
        built = build_wheels(source, target, cold)
    assert differences(first, second) == []
    assert len(built) == len(PLATFORMS) + 2
    for path in first.iterdir():
        platform = next((each for each in PLATFORMS.values() if path.name.endswith(f"{each.tag}.whl")), None)
        with zipfile.ZipFile(path) as opened:
            names = opened.namelist()
            assert (JAR in names) == (not path.name.startswith("statehouse_client-")), path.name
            assert (PROGRAM in names) == (LICENSES in names) == (platform is not None), path.name
            if platform is None:
                continue
            assert opened.getinfo(PROGRAM).external_attr >> 16 & 0o111 == 0o111, "it can be run once it is installed"
            assert is_static_for(opened.read(PROGRAM), platform.machine)
            licenses = opened.read(LICENSES).decode()
            assert "google.golang.org/grpc v" in licenses
            assert "std go" in licenses
            (wheel_file,) = (name for name in names if name.endswith(".dist-info/WHEEL"))
            said = message_from_string(opened.read(wheel_file).decode())
            assert (said["Root-Is-Purelib"], said["Tag"]) == ("false", platform.tag)


def is_static_for(program: bytes, machine: str) -> bool:
    """Whether a program of ELF is for this processor, and asks for no interpreter, which would load a C library."""
    machines = {"x86_64": 62, "aarch64": 183}  # e_machine
    assert program[:6] == b"\x7fELF\x02\x01", "64 bits, little-endian"
    (its_machine,) = struct.unpack_from("<H", program, 18)
    (headers_at,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    kinds = {struct.unpack_from("<I", program, headers_at + number * size)[0] for number in range(count)}
    return bool(its_machine == machines[machine]) and not kinds & {2, 3}  # PT_DYNAMIC, PT_INTERP
