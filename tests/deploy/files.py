"""The files under deploy/ as values: compose.yaml's services and the Dockerfiles' instructions."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
COMPOSE_FILE: Final = DEPLOY / "compose.yaml"
DOCKERFILES: Final = tuple(sorted(path for path in DEPLOY.glob("Dockerfile.*") if path.suffix != ".dockerignore"))

_UNITS_S: Final = {"h": 3600.0, "m": 60.0, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `COPY`, and what follows it."""

    name: str
    rest: str

    @property
    def argv(self) -> list[str]:
        """The rest as words, of the JSON or the shell form."""
        return list(json.loads(self.rest)) if self.rest.startswith("[") else shlex.split(self.rest)


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile's last stage gives a container, and all instructions of all stages."""

    path: Path
    instructions: tuple[Instruction, ...]

    @property
    def stages(self) -> list[str]:
        """Names that COPY --from may use."""
        return [words[2] for words in map(str.split, self._rests("FROM")) if len(words) == 3 and words[1] == "AS"]

    @property
    def last_stage(self) -> tuple[Instruction, ...]:
        """The instructions of the stage that becomes the image."""
        begin = max(number for number, each in enumerate(self.instructions) if each.name == "FROM")
        return self.instructions[begin:]

    @property
    def environment(self) -> dict[str, str]:
        """ENV of the last stage."""
        words = [word for each in self.last_stage if each.name == "ENV" for word in each.argv]
        return dict(word.split("=", 1) for word in words)

    @property
    def entrypoint(self) -> list[str]:
        """ENTRYPOINT of the last stage."""
        return self.one("ENTRYPOINT").argv

    @property
    def healthcheck(self) -> list[str]:
        """The health check's command; empty if there is none."""
        rests = self._rests("HEALTHCHECK")
        return Instruction("CMD", rests[-1].partition("CMD ")[2]).argv if rests else []

    def one(self, name: str) -> Instruction:
        """Return the last stage's only instruction of that name."""
        (found,) = (each for each in self.last_stage if each.name == name)
        return found

    def _rests(self, name: str) -> list[str]:
        return [each.rest for each in self.instructions if each.name == name]


@dataclass(frozen=True, slots=True)
class Service:
    """A service of compose.yaml, with what its image adds."""

    name: str
    spec: Mapping[str, Any]

    @property
    def image(self) -> Image | None:
        """Its image, None if it is not ours."""
        build = self.spec.get("build")
        return read_image(COMPOSE_FILE.parent / build["context"] / build["dockerfile"]) if build else None

    @property
    def argv(self) -> list[str]:
        """What runs in the container."""
        assert self.image is not None
        return [*self.spec.get("entrypoint", self.image.entrypoint), *self.spec.get("command", [])]

    @property
    def environment(self) -> dict[str, str]:
        """The image's variables and the service's own."""
        inherited = self.image.environment if self.image is not None else {}
        return {**inherited, **self.spec.get("environment", {})}

    @property
    def healthcheck(self) -> list[str]:
        """The health check's command; empty if there is none."""
        own = self.spec.get("healthcheck")
        if own is not None:
            assert own["test"][0] == "CMD"
            return list(own["test"][1:])
        return self.image.healthcheck if self.image is not None else []

    @property
    def stop_grace_s(self) -> float:
        """Seconds between the polite signal and SIGKILL; an engine's default is 10."""
        return seconds(self.spec.get("stop_grace_period", "10s"))


def seconds(duration: str) -> float:
    """Return the seconds of a duration as in `1m30s`."""
    parts = re.findall(r"(\d+)([hms])", duration)
    assert "".join(number + unit for number, unit in parts) == duration
    return sum(int(number) * _UNITS_S[unit] for number, unit in parts)


@cache
def compose() -> Mapping[str, Any]:
    """Return compose.yaml with its anchors and merges resolved."""
    return dict(yaml.safe_load(COMPOSE_FILE.read_text()))


def services() -> dict[str, Service]:
    """Return the services by name."""
    return {name: Service(name, spec) for name, spec in compose()["services"].items()}


@cache
def read_image(path: Path) -> Image:
    """Parse a Dockerfile: comments dropped, continued lines joined."""
    lines = [line for line in path.resolve().read_text().splitlines() if not line.lstrip().startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    instructions = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return Image(path.resolve(), tuple(Instruction(name, " ".join(rest.split())) for name, rest in instructions))
