"""compose.yaml is what the specification allows, and says nothing that our programs would not understand."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest
import typer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from examples.leaderboard import topology
from statehouse.local.jars import BROKER_JARS
from statehouse.local.kafka import EmbeddedKafka
from statehouse.settings import PROCESSES, WebSettings, load
from tests.deploy.files import Service, compose, services
from tests.deploy.programs import parse

# The specification's schema is published in the module of its reference implementation.
_SCHEMA_MODULE: Final = "github.com/compose-spec/compose-go/v2@v2.16.2"
_SCHEMA_SUM: Final = "h1:pTp1DqQwJzFd85GzlWsSszKA1ABrV/ySqsClujIcWA8="

_OURS: Final = {name: service for name, service in services().items() if service.image is not None}
_NODES: Final = {name: service for name, service in _OURS.items() if service.argv == ["statehouse", "node"]}
# Read by the code that fetches jars, not by a command's options.
_TOOL_VARIABLES: Final = {"STATEHOUSE_CACHE_DIR"}


@pytest.fixture(scope="module")
def schema() -> Mapping[str, Any]:
    assert shutil.which("go"), "Go fetches the specification's schema, as it does the tools of `make tools`: install it"
    done = subprocess.run(
        ["go", "mod", "download", "-json", _SCHEMA_MODULE], capture_output=True, text=True, check=False, cwd="/"
    )
    module = json.loads(done.stdout)
    assert done.returncode == 0, module.get("Error", done.stderr)
    assert module["Sum"] == _SCHEMA_SUM
    return dict(json.loads(Path(module["Dir"], "schema/compose-spec.json").read_text()))


def test_matches_the_specification(schema: Mapping[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert [f"{error.json_path}: {error.message}" for error in validator.iter_errors(compose())] == []
    broken = {**compose(), "services": {"kafka": {"imagee": "kafka"}}}
    assert not validator.is_valid(broken), "a schema that takes anything proves nothing"


def test_references_exist() -> None:
    names = services()
    volumes = set(compose()["volumes"])
    used = set()
    for service in names.values():
        conditions = service.spec.get("depends_on", {})
        assert conditions.keys() <= names.keys()
        for other, condition in conditions.items():
            if condition["condition"] == "service_healthy":
                assert names[other].healthcheck, f"{service.name} waits for {other}, which has no health check"
        used |= {volume.split(":")[0] for volume in service.spec.get("volumes", [])}
    assert used == volumes


def test_there_are_three_nodes_each_with_its_own_name_and_disk() -> None:
    assert len(_NODES) == 3
    for name, node in _NODES.items():
        assert node.environment["STATEHOUSE_INSTANCE_ID"] == name
        assert node.environment["STATEHOUSE_ADVERTISED_HOST"] == name, "others must reach it by the service's name"
    mounts = [mount for node in _NODES.values() for mount in node.spec["volumes"]]
    assert len({mount.split(":")[0] for mount in mounts}) == 3
    assert {mount.split(":")[1] for mount in mounts} == {"/var/lib/statehouse"}
    assert all(node.environment["STATEHOUSE_STATE_DIR"] == "/var/lib/statehouse" for node in _NODES.values())


@pytest.mark.feature("acts-told-getfleet")
def test_a_controller_stands_by() -> None:
    standing_by = [each for each in _OURS.values() if each.spec.get("command") == ["controller", "--standby"]]
    assert len(standing_by) == 1
    assert "restart" in standing_by[0].spec


def test_everybody_talks_to_the_same_broker_and_application() -> None:
    kafka = services()["kafka"]
    advertised = kafka.environment["KAFKA_ADVERTISED_LISTENERS"].removeprefix("PLAINTEXT://")
    assert {s.environment["STATEHOUSE_BOOTSTRAP"] for s in _OURS.values() if s.name != "http-api"} == {advertised}
    ids = {s.environment["STATEHOUSE_APPLICATION_ID"] for s in [*_NODES.values(), _OURS["router"]]}
    assert ids == {topology.application_id}
    assert _OURS["http-api"].environment["STATEHOUSE_ROUTER"] == "router:7100"


def test_published_ports_are_those_listened_on_and_for_this_machine_only() -> None:
    published = {name: s.spec["ports"] for name, s in services().items() if "ports" in s.spec}
    assert published == {"router": ["127.0.0.1:7100:7100"], "http-api": ["127.0.0.1:7000:7000"]}
    assert _OURS["router"].environment["STATEHOUSE_ROUTER_PORT"] == "7100"
    assert _OURS["http-api"].environment["STATEHOUSE_HTTP_PORT"] == "7000"
    assert _OURS["router"].healthcheck[-1] == "127.0.0.1:7100"
    for node in _NODES.values():
        assert node.healthcheck[-1] == f"127.0.0.1:{node.environment['STATEHOUSE_NODE_PORT']}"


def test_nodes_may_finish_their_hand_over() -> None:
    for node in _NODES.values():
        drain_s = int(node.environment["STATEHOUSE_DRAIN_TIMEOUT_MS"]) / 1000
        assert node.stop_grace_s >= drain_s + 10, "a drain is followed by ending calls, flushing and closing"


def test_what_should_go_on_is_restarted_and_the_one_shot_is_not() -> None:
    policies = {name: service.spec["restart"] for name, service in services().items()}
    assert policies.pop("sample-data") == "no"
    assert set(policies.values()) == {"unless-stopped"}


def test_the_broker_is_the_version_we_test_with() -> None:
    assert services()["kafka"].spec["image"] == f"apache/kafka:{BROKER_JARS.roots[0].revision}"


def test_the_broker_knows_its_settings(kafka: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")], request_timeout=30.0).values()
    known = future.result().keys()
    given = [name for name in services()["kafka"].environment if name.startswith("KAFKA_")]
    unknown = [name for name in given if name.removeprefix("KAFKA_").lower().replace("_", ".") not in known]
    assert given
    assert unknown == []


@pytest.fixture
def as_in_container(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No variables of ours but those that a test sets."""
    for name in [name for name in os.environ if name.startswith("STATEHOUSE_")]:
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("service", _OURS.values(), ids=_OURS.keys())
def test_command_and_variables_are_understood(service: Service, as_in_container: pytest.MonkeyPatch) -> None:
    for name, value in service.environment.items():
        if name.startswith("STATEHOUSE_"):
            as_in_container.setenv(name, value)
    given = {name for name in service.environment if name.startswith("STATEHOUSE_")}
    # What the image sets is for several services; what the service sets must reach somebody.
    own = set(service.spec["environment"])
    assert own <= given
    assert own - _understood(service) == set()
    assert given - _understood(service) <= (_TOOL_VARIABLES | _image_variables(service)) - own


def _image_variables(service: Service) -> set[str]:
    assert service.image is not None
    return set(service.image.environment)


def _understood(service: Service) -> set[str]:
    """The variables that the service's program reads; parses its command line on the way, as the program would."""
    program, *arguments = service.argv
    match program, arguments:
        case "statehouse", _:
            name = parse(arguments)
            assert name != "process" or arguments[1] == topology.__name__
            load(PROCESSES[name], {})  # all that has no default is given, and all values are valid
            return {setting.variable for setting in PROCESSES[name].declared().values()}
        case "python", ["-m", module, *rest]:
            produce = typer.Typer()
            produce.command()(importlib.import_module(module).main)
            understood = _variables(typer.main.get_command(produce).make_context(module, rest))
            if service.name == "http-api":
                load(WebSettings, {})
                understood |= {setting.variable for setting in WebSettings.declared().values()}
            return understood
    raise AssertionError(f"{service.name}: no test knows the program {program}")


def _variables(context: Any) -> set[str]:
    return {parameter.envvar for parameter in context.command.params if getattr(parameter, "envvar", None)}
