"""The Helm chart as values: rendered by helm, its objects, and its pods as processes know them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy.files import DEPLOY, ROOT, read_image

CHART: Final = DEPLOY / "helm" / "statehouse"
HELM: Final = ROOT / ".tools" / "bin" / "helm"
RELEASE: Final = "scores"
NAMESPACE: Final = "games"
MINIMAL: Final[Mapping[str, Any]] = {
    "applicationId": "video-game-leaderboard",
    "kafka": {"bootstrap": "kafka-0.kafka:9092,kafka-1.kafka:9092"},
    "processor": {"module": "examples.leaderboard.topology"},
}
"""What must be given."""

_TEMPLATED: Final = ("StatefulSet", "Deployment")
_DOCKERFILES: Final = {"statehouse-service": "Dockerfile.service", "statehouse-processor": "Dockerfile.processor"}


class Refused(Exception):
    """Helm has refused the values; the text says why."""


@dataclass(frozen=True)
class Container:
    """What runs in a pod, and what it gets there. `pod`: its name, which variables may refer to."""

    template: Mapping[str, Any]
    pod: str

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The pod's only container."""
        (container,) = self.template["spec"]["containers"]
        return dict(container)

    @property
    def argv(self) -> list[str]:
        """The command line: the image's entry point and the arguments."""
        name = self.spec["image"].rpartition("/")[2].partition("@")[0].partition(":")[0]
        return [*read_image(DEPLOY / _DOCKERFILES[name]).entrypoint, *self.spec["args"]]

    @property
    def environment(self) -> dict[str, str]:
        """The variables, as a pod of that name gets them; a label that it lacks is empty."""
        fields = {"metadata.name": self.pod, "metadata.namespace": NAMESPACE}
        found: dict[str, str] = {}
        for each in self.spec["env"]:
            if "valueFrom" in each:
                path = each["valueFrom"]["fieldRef"]["fieldPath"]
                found[each["name"]] = "" if path.startswith("metadata.labels[") else fields[path]
            else:
                found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
        return found

    @property
    def probes(self) -> dict[str, Mapping[str, Any]]:
        """The probes by their kind: startup, readiness, liveness."""
        return {name: self.spec[f"{name}Probe"] for name in ("startup", "readiness", "liveness")}

    @property
    def startup_s(self) -> float:
        """Seconds that a start may take."""
        probe = self.probes["startup"]
        return float(probe["periodSeconds"] * probe["failureThreshold"])

    @property
    def pre_stop(self) -> list[str]:
        """The command before SIGTERM; empty if there is none."""
        return list(self.spec.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", []))

    @property
    def grace_s(self) -> int:
        """Seconds between the first word of the end and SIGKILL."""
        return int(self.template["spec"]["terminationGracePeriodSeconds"])

    @property
    def ports(self) -> dict[str, int]:
        """The ports by name."""
        return {each["name"]: each["containerPort"] for each in self.spec["ports"]}

    @property
    def mounts(self) -> dict[str, str]:
        """Where each volume is mounted."""
        return {each["name"]: each["mountPath"] for each in self.spec["volumeMounts"]}

    @property
    def volumes(self) -> dict[str, Mapping[str, Any]]:
        """The volumes by name."""
        return {each["name"]: each for each in self.template["spec"]["volumes"]}


@dataclass(frozen=True)
class Rendered:
    """The objects that a release consists of."""

    objects: Sequence[Mapping[str, Any]]

    def of(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Return the objects of a kind by name."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    @property
    def templates(self) -> dict[str, Mapping[str, Any]]:
        """The templates of pods, by the names of what makes them."""
        found = {name: each["spec"]["template"] for kind in _TEMPLATED for name, each in self.of(kind).items()}
        for name, application in self.of("SparkApplication").items():
            for role in ("driver", "executor"):
                found[f"{name}-{role}"] = application["spec"][f"{role}Spec"]["podTemplateSpec"]
        return found

    def container(self, component: str, ordinal: int = 0) -> Container:
        """Return the container of a component's first workload."""
        for kind in _TEMPLATED:
            for name, each in self.of(kind).items():
                template = each["spec"]["template"]
                if template["metadata"]["labels"]["app.kubernetes.io/component"] == component:
                    return Container(template, f"{name}-{ordinal}")
        raise AssertionError(f"no {component}")

    @property
    def settings(self) -> str:
        """The file of the settings that all pods read."""
        (text,) = (
            each["data"]["statehouse.toml"] for each in self.objects if "statehouse.toml" in each.get("data", {})
        )
        return str(text)


def render(values: Mapping[str, Any], directory: Path, release: str = RELEASE) -> Rendered:
    """Render the chart with these values in addition to those that must be given.

    Raises:
        Refused: the values can't be.

    """
    text = helm("template", release, str(CHART), "--namespace", NAMESPACE, values=values, directory=directory)
    return Rendered([each for each in yaml.safe_load_all(text) if each])


def helm(*arguments: str, values: Mapping[str, Any], directory: Path) -> str:
    """Run helm; return what it prints.

    Raises:
        Refused: it fails.

    """
    file = directory / "values.json"
    file.write_text(json.dumps(merged(MINIMAL, values)))
    assert HELM.exists(), "helm is not there: run make tools"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(directory), "HELM_CACHE_HOME": str(directory)}
    command = [str(HELM), *arguments, "--kube-version", "1.35.0", "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    if done.returncode != 0:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return values over others, as helm merges them."""
    found = dict(base)
    for name, value in over.items():
        before = found.get(name)
        found[name] = merged(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return found


def nested(value: object, name: str) -> Iterator[Any]:
    """Yield every value under a key of this name, however deep."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key == name:
                yield each
            yield from nested(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from nested(each, name)
