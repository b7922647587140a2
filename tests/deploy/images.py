"""Images built for real, without a registry and without a container engine's daemon, and processes that run in them.

`buildah` builds each Dockerfile in a chroot, on bases that `mmdebstrap` makes of Debian's packages and that have the
names which the Dockerfile gives. The bases also get how this machine fetches packages: its lists of sources, its
certificates and pip's settings.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy.files import ROOT, Image

STORE: Final = ROOT / ".tools" / "images"
"""Bases and images are kept here: the next run builds only what has changed."""

NEWER: Final = "statehouse-tests:python3.13-java21"
"""A base of no Dockerfile: Debian 13 with its own Python and Java, which are newer than this machine's."""

_PYTHON: Final = ("python3", "python3-venv", "python3-pip", "python3-dev")
_BASES: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    # procps: Spark's start scripts call ps.
    NEWER: ("trixie", (*_PYTHON, "openjdk-21-jre-headless", "procps")),
    "python:3.11-slim-bookworm": ("bookworm", _PYTHON),
    # Its compiler is of the version that the Dockerfile names; what it builds needs nothing of its Debian.
    "golang:1.24-bookworm": ("trixie", ("golang-1.24-go",)),
}
_MACHINES: Final = (
    *("/etc/pip.conf", "/etc/apt/apt.conf.d", "/etc/apt/sources.list.d", "/etc/ssl/certs", "/etc/hosts"),
    "/usr/local/share/ca-certificates",
)
# As the official images have it: python and pip by these names, and packages that pip may install in addition to
# Debian's.
_AS_PYTHON: Final = (
    "ln -s python3 /usr/bin/python; rm -f /usr/lib/python3*/EXTERNALLY-MANAGED; ln -sf /usr/bin/pip3 /usr/local/bin/pip"
)
_AS_GO: Final = "ln -s /usr/lib/go-1.24/bin/go /usr/local/bin/go"
USER: Final = "10001"
"""Who runs in an image."""


def needed() -> list[str]:
    """Return the programs that aren't there."""
    return [name for name in ("buildah", "mmdebstrap", "unshare", "setpriv") if shutil.which(name) is None]


@dataclass(frozen=True)
class Built:
    """An image, and where its files are mounted."""

    name: str
    config: Mapping[str, Any]
    root: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it gives each process."""
        return dict(each.split("=", 1) for each in self.config["Env"])

    @property
    def entrypoint(self) -> list[str]:
        """What it runs."""
        return list(self.config["Entrypoint"])

    @property
    def healthcheck(self) -> list[str]:
        """The health check's command; empty if it has none."""
        check = (self.config.get("Healthcheck") or {}).get("Test", [])
        assert check[:1] in ([], ["CMD"])
        return list(check[1:])

    def command(self, argv: Sequence[str], environment: Mapping[str, str], binds: Mapping[str, Path]) -> list[str]:
        """Return a command that runs another in the image: as its user, without rights, its files read-only.

        `binds`: folders of ours by their places in it; these may be written. The network and the process ids are ours,
        so that the command's process is the one that is started.
        """
        assert self.config["User"] == USER
        return command_in(self.root, argv, {**self.environment, **environment}, binds, self.config["WorkingDir"])


def command_in(
    base: Path, argv: Sequence[str], variables: Mapping[str, str], binds: Mapping[str, Path], work: str
) -> list[str]:
    """Return a command that runs another with a folder as its root: without rights, the files read-only.

    It has these variables and no others, works in the folder `work`, and may write what is in `binds`.
    """
    root = str(base)
    mounts = [f"mount --make-rprivate / && mount --bind {root} {root} && mount -o remount,bind,ro {root}"]
    mounts += [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    mounts += [f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp"]  # noqa: S108 - the image's own
    mounts += [f"mount --bind {folder} {root}{place}" for place, folder in binds.items()]
    dropped = "--clear-groups --no-new-privs --inh-caps=-all --ambient-caps=-all --bounding-set=-all"
    inside = f"/usr/bin/setpriv --reuid={USER} --regid={USER} {dropped}"
    named = [f"{name}={value}" for name, value in variables.items()]
    script = f'{" && ".join(mounts)} && exec chroot {root} {inside} /usr/bin/env -i -C {work} "$@"'
    return ["unshare", "--mount", "sh", "-c", script, "sh", *named, *argv]


def buildah(*arguments: str, timeout_s: float = 3_000.0) -> str:
    """Run buildah on the store of the tests; return what it prints."""
    places = ["--root", str(STORE / "storage"), "--runroot", str(STORE / "run"), "--storage-driver", "overlay"]
    environment = {**os.environ, "BUILDAH_ISOLATION": "chroot"}
    done = subprocess.run(
        ["buildah", *places, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"buildah {' '.join(arguments)}:\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout.strip()


def build(image: Image, tag: str) -> Built:
    """Build a Dockerfile, and mount what comes of it."""
    STORE.mkdir(parents=True, exist_ok=True)
    for base in {each.rest.split()[0] for each in image.instructions if each.name == "FROM"}:
        _have(base)
    ignored = image.path.with_name(f"{image.path.name}.dockerignore")
    options = ["--pull=never", "--format", "docker", "--layers", "--ignorefile", str(ignored)]
    buildah("bud", *options, "--file", str(image.path), "--tag", tag, str(ROOT))
    container = buildah("from", "--pull=never", tag)
    config = json.loads(buildah("inspect", "--type", "image", tag))["Docker"]["config"]
    return Built(tag, config, Path(buildah("mount", container)))


@contextmanager
def mounted_base(base: str) -> Iterator[Path]:
    """Make a base, unless it is there; yield where a fresh copy of its files is mounted."""
    STORE.mkdir(parents=True, exist_ok=True)
    _have(base)
    container = buildah("from", "--pull=never", base)
    try:
        yield Path(buildah("mount", container))
    finally:
        buildah("rm", container)


def remove_containers() -> None:
    """Unmount and remove what images were mounted as; the images stay."""
    buildah("rm", "--all")


def _have(base: str) -> None:
    """Make a base image, unless it is there."""
    suite, packages = _BASES[base]
    known = buildah("images", "--format", "{{.Name}}:{{.Tag}}").splitlines()
    if any(name.endswith(f"/{base}") for name in known):
        return
    archive = STORE / "base.tar"
    copied = [f"--customize-hook=copy-in {path} {Path(path).parent}" for path in _MACHINES if Path(path).exists()]
    further = _AS_GO if base.startswith("golang") else _AS_PYTHON
    command = [
        *("mmdebstrap", "--mode=root", "--variant=minbase", "--format=tar", "--dpkgopt=path-exclude=/usr/share/man/*"),
        f"--include={','.join(('ca-certificates', *packages))}",
        '--essential-hook=mkdir -p "$1/usr/share/man/man1"',  # Java's package links into it
        *copied,
        f'--customize-hook=chroot "$1" sh -c "{further}"',
        *(suite, str(archive), *_sources(suite)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    assert done.returncode == 0, done.stderr[-4000:]
    container = buildah("from", "scratch")
    buildah("add", container, str(archive), "/")
    buildah("config", "--env", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", container)
    for name, value in pip_variables().items():
        buildah("config", "--env", f"{name}={value}", container)
    buildah("commit", "--format", "docker", container, base)
    buildah("rm", container)
    archive.unlink()


def pip_variables() -> dict[str, str]:
    """Return how this machine's pip finds its index."""
    return {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT_"))}


def _sources(suite: str) -> Iterable[str]:
    """Return this machine's places of Debian's packages, for another release of it."""
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in file.read_text().split("\n\n"):
            parts = [line.partition(":") for line in stanza.splitlines() if line[:1] != "#"]
            fields = {name.strip(): value.strip() for name, colon, value in parts if colon}
            if fields.get("Suites", "").startswith(f"{_own_suite()} "):
                yield f"deb [signed-by={fields['Signed-By']}] {fields['URIs']} {suite} main"


def _own_suite() -> str:
    lines = dict(line.partition("=")[::2] for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    return str(lines["VERSION_CODENAME"])
