"""The build hook of wheels: puts the proxy into those of a platform, and the examples, as data, into all.

Where Spark and Java are installed, it also puts the jar of our Java classes into all (processor/jvm). Without it, the
classes are compiled on the machine that uses them.

The client's wheel (client/pyproject.toml) gets the files that the other ones exclude, and nothing else.

The variable STATEHOUSE_WHEEL names the platform, as in `linux-amd64`; without it a wheel is pure, and building it needs
Python alone. Editable installs get nothing of it: a checkout has the examples, and `make tools` builds its proxy.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE: Final = "STATEHOUSE_WHEEL"
PURE: Final = "pure"
PROGRAM: Final = "statehouse/link/statehouse-proxy"
LICENSES: Final = f"{PROGRAM}.licenses.txt"
JAR: Final = "processor/jvm/statehouse-task.jar"
EXAMPLES: Final = "statehouse/local/packaged/examples"
CLIENT: Final = "statehouse-client"

_LICENSE_NAME: Final = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|PATENTS)([.-].*)?", re.IGNORECASE)


# Not dataclasses: hatchling loads this file under no name, and they look their module up by its name.
class Platform(NamedTuple):
    """What a wheel's program runs on: Go's name of the processor, and Python's."""

    go_arch: str
    machine: str

    @property
    def tag(self) -> str:
        """The wheel's tag.

        The program is static: it asks for no C library, so the oldest one that pip's tags and our other requirements
        know of will do. Go asks for Linux 3.2, and systems with glibc 2.17 have 3.10.
        """
        return f"py3-none-manylinux_2_17_{self.machine}"


PLATFORMS: Final[Mapping[str, Platform]] = MappingProxyType(
    {"linux-amd64": Platform("amd64", "x86_64"), "linux-arm64": Platform("arm64", "aarch64")}
)


class CantBuild(RuntimeError):
    """A wheel can't be built here; the text says what to do."""


class WheelHook(BuildHookInterface):  # type: ignore[type-arg] # hatchling's own types ask for its configuration's class
    """What hatchling calls before it gathers a wheel's files."""

    PLUGIN_NAME = "custom"
    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add files to a wheel, and name its platform.

        Raises:
            CantBuild: there is no such platform, or the proxy can't be built.

        """
        if version == "editable":
            return
        root = Path(self.root)
        if self.metadata.name == CLIENT:
            build_data["force_include"] |= {str(root.parent / path): path for path in client_files(root.parent)}
            return
        build_data["force_include"] |= dict(example_files(root))
        name = os.environ.get(VARIABLE) or PURE
        if name != PURE and name not in PLATFORMS:
            raise CantBuild(f"{VARIABLE}={name}: there is no such platform, give {', '.join(PLATFORMS)} or {PURE}")
        self._scratch = tempfile.TemporaryDirectory(prefix="statehouse-wheel-")
        folder = Path(self._scratch.name)
        obstacle = make_jar(root, folder / "jar")
        if obstacle is None:
            build_data["force_include"][str(folder / "jar")] = JAR
        else:
            self.app.display_warning(f"the wheel has no {JAR}: {obstacle}")
        if name == PURE:
            return
        proxy = ProxySource(root / "dataplane", PLATFORMS[name])
        proxy.build(folder / "proxy")
        (folder / "licenses").write_text(proxy.licenses(), encoding="utf-8")
        build_data["force_include"] |= {str(folder / "proxy"): PROGRAM, str(folder / "licenses"): LICENSES}
        build_data |= {"pure_python": False, "tag": PLATFORMS[name].tag}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Remove what was made for the wheel, once that is there."""
        if self._scratch is not None:
            self._scratch.cleanup()


def make_jar(root: Path, target: Path) -> str | None:
    """Compile the Java classes into a jar; return None, or why that can't be done here."""
    command = [sys.executable, "-m", "processor.jvm.jar", str(target)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else None


def example_files(root: Path) -> Iterator[tuple[str, str]]:
    """Yield what is packaged of the examples, with its place in the wheel; those that are distributions are not."""
    for path in sorted((root / "examples").iterdir()):
        is_package = (path / "__init__.py").exists()
        if is_package or path.suffix == ".py":
            yield str(path), f"{EXAMPLES}/{path.name}"


def client_files(root: Path) -> list[str]:
    """Return the files and folders of the client's wheel, by their paths from the root: what the others exclude."""
    declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return list(declared["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"])


class Module(NamedTuple):
    """A module of Go that is linked into the proxy, and where its source is."""

    path: str
    version: str
    folder: Path


class ProxySource(NamedTuple):
    """The proxy's source, for a platform."""

    folder: Path
    platform: Platform

    def build(self, target: Path) -> None:
        """Build the program, such that its bytes depend on the source and the Go version alone.

        Raises:
            CantBuild: there is no Go, or the source doesn't compile.

        """
        # No paths of this machine, no state of a repository, no symbols for debuggers.
        self._go("build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(target), ".")

    def modules(self) -> list[Module]:
        """Return the modules that are linked in, Go's own library first."""
        version, root = json_values(self._go("env", "-json", "GOVERSION", "GOROOT"), "GOVERSION", "GOROOT")
        listed = self._go("list", "-deps", "-f", "{{with .Module}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}", ".")
        found = {tuple(line.split("\t")) for line in listed.splitlines() if line}
        linked = [Module(path, version, Path(folder)) for path, version, folder in sorted(found) if version]
        return [Module("std", version, Path(root)), *linked]

    def licenses(self) -> str:
        """Return the licences of all that is linked in, as who passes the program on must pass them on, too."""
        texts = []
        for module in self.modules():
            files = sorted(path for path in module.folder.iterdir() if _LICENSE_NAME.fullmatch(path.name))
            if not files:
                raise CantBuild(f"{module.path} {module.version} has no file with its licence")
            for path in files:
                title = f"{module.path} {module.version}: {path.name}"
                texts.append(f"{title}\n{'=' * len(title)}\n\n{path.read_text(encoding='utf-8').strip()}\n")
        return "\n\n".join(texts)

    def _go(self, *arguments: str) -> str:
        environment = {
            "CGO_ENABLED": "0",
            "GOOS": "linux",
            "GOARCH": self.platform.go_arch,
            # What each processor of the kind can run, without the settings of this machine's Go.
            "GOAMD64": "v1",
            "GOARM64": "v8.0",
            "GOFLAGS": "-mod=readonly",
            "GOEXPERIMENT": "",
        }
        try:
            done = subprocess.run(
                ["go", *arguments],
                cwd=self.folder,
                env=os.environ | environment,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise CantBuild(
                "the proxy is built by Go, and there is no `go` on the PATH: install Go 1.24 or newer, or leave "
                f"{VARIABLE} unset for a wheel without a proxy"
            ) from error
        if done.returncode:
            raise CantBuild(f"go {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
        return done.stdout


def json_values(text: str, *names: str) -> tuple[str, ...]:
    """Return the named texts of a JSON object."""
    document = json.loads(text)
    return tuple(document[name] for name in names)
