"""The Helm chart for many values: what the cluster's schemas allow, and nothing that doesn't exist or isn't meant."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest
import yaml

from statehouse.settings import CONFIG_ENV, PROCESSES, NodeSettings, RouterSettings, check_file, load
from tests.deploy.chart import (
    CHART,
    MINIMAL,
    NAMESPACE,
    Container,
    Refused,
    Rendered,
    helm,
    merged,
    nested,
    render,
)
from tests.deploy.files import ROOT
from tests.deploy.programs import parse

_TLS: Final = {
    "enabled": True,
    "nodeSecret": "node-tls",
    "routerSecret": "router-tls",
    "processorSecret": "processor-tls",
    "healthSecret": "health-tls",
    "rules": '[[identity]]\nname = "health"\ncertificates = ["spiffe://house/health"]\nroles = ["health"]\n',
}
_PEERS: Final = [{"namespaceSelector": {"matchLabels": {"team": "games"}}}]
_PLACEMENT: Final[Mapping[str, Any]] = {
    "nodeSelector": {"pool": "state"},
    "tolerations": [{"key": "state", "operator": "Exists", "effect": "NoSchedule"}],
    "annotations": {"sidecar.istio.io/inject": "false"},
    "affinity": {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"noisy": "true"}}}
            ]
        }
    },
    "priorityClassName": "state",
    "podLabels": {"team": "games"},
    "initContainers": [{"name": "wait", "image": "busybox", "command": ["true"]}],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [{"name": "house", "secret": {"secretName": "house"}}],
    "extraVolumeMounts": [{"name": "house", "mountPath": "/etc/house", "readOnly": True}],
}
CASES: Final[Mapping[str, Mapping[str, Any]]] = {
    "minimal": {},
    "tls": {"tls": _TLS, "monitoring": {"serviceMonitor": {"enabled": True}}},
    "tls of servers alone": {
        "tls": {**_TLS, "healthSecret": "", "rules": "", "callers": "none"},
        "monitoring": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    },
    "alerts": {"monitoring": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}},
    "dashboards": {
        "monitoring": {
            "prometheusRule": {"enabled": True, "runbookUrl": "https://docs.house/runbooks/"},
            "dashboards": {"enabled": True, "annotations": {"grafana_folder": "Statehouse"}},
        },
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/state"}},
    },
    "strimzi": {
        "kafka": {
            "securityProtocol": "sasl_ssl",
            "saslMechanism": "SCRAM-SHA-512",
            "credentialsSecret": "scores-user",
            "credentialsKey": "sasl.jaas.config",
            "tlsSecret": "house-cluster-ca-cert",
        }
    },
    "sasl": {
        "kafka": {
            "securityProtocol": "sasl_ssl",
            "saslMechanism": "SCRAM-SHA-512",
            "credentialsSecret": "kafka-login",
            "tlsSecret": "kafka-ca",
            "showCertificate": True,
        }
    },
    "zones": {
        "nodes": {
            "zones": [
                {"name": "a", "zone": "eu-central-1a", "replicas": 2},
                {"name": "b", "zone": "eu-central-1b", "replicas": 1},
            ],
            "affinity": _PLACEMENT["affinity"],
        },
        "settings": {"num_standby_replicas": 1},
    },
    "racks of labels": {"nodes": {"rackFrom": "podLabel"}, "routers": {"rackFrom": "podLabel"}},
    "nodes that keep their tasks": {"nodes": {"onStop": "keep"}, "settings": {"session_timeout_ms": 120_000}},
    "scaling, page": {
        "routers": {
            "autoscaling": {"enabled": True, "cpuPercent": 0},
            "http": {"enabled": True, "allowedHosts": ["a.b"]},
            "service": {"type": "LoadBalancer", "annotations": {"load-balancer": "internal"}},
        }
    },
    "scaling by two": {"routers": {"autoscaling": {"enabled": True}}},
    "policies": {
        "networkPolicies": {
            "enabled": True,
            "clients": _PEERS,
            "monitoring": _PEERS,
            "kafka": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "egress": [{"ports": [{"port": 443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}],
        }
    },
    "policies for all": {"networkPolicies": {"enabled": True}, "processor": {"mode": "none", "module": ""}},
    "spark operator": {
        "processor": {
            "mode": "sparkApplication",
            "checkpointDir": "s3a://house/checkpoints",
            "spark": {"image": "registry/spark:1", "conf": {"spark.executor.memory": "2g", "spark.executor.cores": 2}},
            "settings": {"spark_conf": {"spark.ui.enabled": "true"}},
            **_PLACEMENT,
        },
        "image": {"pullSecrets": ["registry"]},
        "networkPolicies": {"enabled": True},
        "tls": _TLS,
    },
    "processor elsewhere": {"processor": {"mode": "none", "module": ""}, "controllers": {"replicas": 0}},
    "checkpoints on an object store": {"processor": {"checkpointDir": "s3a://house/checkpoints"}},
    "no users of ours": {"podSecurity": {"runAsUser": None, "fsGroup": None}},
    "workers": {
        "routers": {"settings": {"workers": 3}},
        "monitoring": {"serviceMonitor": {"enabled": True}},
        "networkPolicies": {"enabled": True},
    },
    "settings": {
        "settings": {
            "heartbeat_interval_ms": 500,
            "log_level": "warning",
            "max_message_bytes": 33_554_432,
            "express": False,
            "num_standby_replicas": 2,
            "spark_conf": {"spark.ui.enabled": "true", 'a "quoted" name': "<&>\\ 'é"},
        },
        "nodes": {"settings": {"drain_timeout_ms": 45_500, "stop_grace_ms": 1, "block_cache_bytes": 1_073_741_824}},
        "routers": {"settings": {"workers": 2, "hold_window_ms": 0, "stop_grace_ms": 7_001}, "lameDuckSeconds": 0},
        "processor": {"settings": {"stop_timeout_ms": 60_000, "spark_conf": {"spark.driver.memory": "2g"}}},
        "controllers": {"settings": {"log_level": "debug"}},
    },
    "names": {"fullnameOverride": "a" * 60, "nameOverride": "other", "clusterDomain": "house.local", "bindHost": "::"},
    "names that YAML would take for something else": {
        "nameOverride": "7",
        "nodes": {"zones": [{"name": name, "zone": name, "replicas": 1} for name in ("1", "no")]},
        "tls": {**_TLS, "nodeSecret": "1", "routerSecret": "2", "processorSecret": "3", "healthSecret": "4"},
        "kafka": {"securityProtocol": "ssl", "tlsSecret": "5"},
        "image": {"pullSecrets": ["6"]},
        "monitoring": {"serviceMonitor": {"enabled": True}},
    },
    "images": {
        "image": {
            "service": {"repository": "registry/statehouse-service", "digest": f"sha256:{'0' * 64}"},
            "processor": {"repository": "registry/statehouse-processor", "tag": "1.2.3"},
            "pullSecrets": ["registry"],
            "pullPolicy": "Always",
        }
    },
    "placement": dict.fromkeys(("nodes", "routers", "controllers", "processor"), _PLACEMENT),
    "budgets by what must be left": {
        "nodes": {"disruptionBudget": {"minAvailable": 2}},
        "routers": {"disruptionBudget": {"minAvailable": "50%"}},
    },
    "no budgets, no spread": {
        "nodes": {"disruptionBudget": None, "topologySpread": []},
        "routers": {"disruptionBudget": None, "topologySpread": []},
    },
}
"""Values beside those that must be given, by what they are for."""

REFUSED: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "no application": ({"applicationId": ""}, "applicationId"),
    "no broker": ({"kafka": {"bootstrap": ""}}, "bootstrap"),
    "a broker without a port": ({"kafka": {"bootstrap": "kafka"}}, "bootstrap"),
    "a value that nobody reads": ({"node": {"replicas": 3}}, "node"),
    "a setting that nobody has": ({"settings": {"heartbeat_ms": 1}}, "heartbeat_ms"),
    "a setting of another role": ({"routers": {"settings": {"drain_timeout_ms": 1}}}, "drain_timeout_ms"),
    "a setting out of its bounds": ({"settings": {"heartbeat_interval_ms": 1}}, "heartbeat_interval_ms"),
    "a setting that the chart decides": ({"settings": {"node_port": 1}}, "node_port"),
    "no module": ({"processor": {"module": ""}}, "processor.module is missing"),
    "tls without certificates": ({"tls": {"enabled": True}}, "needs tls.nodeSecret and tls.routerSecret"),
    "tls without the processor's": ({"tls": {**_TLS, "processorSecret": ""}}, "needs tls.processorSecret"),
    "rules without tls": ({"tls": {"rules": "[anonymous]"}}, "does nothing without tls.enabled"),
    "a login without its protocol": ({"kafka": {"credentialsSecret": "login"}}, "do nothing without sasl"),
    "a login without credentials": ({"kafka": {"securityProtocol": "sasl_ssl"}}, "needs kafka.saslMechanism"),
    "a certificate for no TLS": ({"kafka": {"tlsSecret": "ca"}}, "kafka.tlsSecret does nothing with plaintext"),
    "a certificate from nowhere": ({"kafka": {"showCertificate": True}}, "needs kafka.tlsSecret"),
    "an operator without checkpoints": ({"processor": {"mode": "sparkApplication"}}, "needs processor.checkpointDir"),
    "two kinds of racks": (
        {"nodes": {"rackFrom": "podLabel", "zones": [{"name": "a", "zone": "a", "replicas": 1}]}},
        "names the racks already",
    ),
    "a zone that is there twice": (
        {"nodes": {"zones": [{"name": "a", "zone": zone, "replicas": 1} for zone in ("x", "y")]}},
        "has the name a twice",
    ),
    "names too long for the pods' labels": (
        {"fullnameOverride": "a" * 40, "nodes": {"zones": [{"name": "eu-central", "zone": "a", "replicas": 1}]}},
        "can't have a name as long as",
    ),
    "a name that nothing can have": ({"fullnameOverride": "My_Scores"}, "give fullnameOverride"),
    "a name that no service can have": ({"fullnameOverride": "2nd"}, "give fullnameOverride"),
    "a name that no label can have": ({"nameOverride": "my scores"}, "nameOverride"),
    "fewer than the fewest": (
        {"routers": {"autoscaling": {"enabled": True, "minReplicas": 20, "maxReplicas": 2}}},
        "minReplicas is more than maxReplicas",
    ),
    "tasks kept for too short": ({"nodes": {"onStop": "keep"}}, "settings.session_timeout_ms"),
    "a setting among variables": (
        {"nodes": {"extraEnv": [{"name": "STATEHOUSE_NODE_PORT", "value": "1"}]}},
        "change nodes.settings",
    ),
    "a label that the chart has": ({"routers": {"podLabels": {"app.kubernetes.io/name": "a"}}}, "finds its pods"),
    "runbooks at no address": ({"monitoring": {"prometheusRule": {"runbookUrl": "runbooks.md"}}}, "runbookUrl"),
    "a monitor that nobody knows": (
        {"tls": {**_TLS, "healthSecret": ""}, "monitoring": {"serviceMonitor": {"enabled": True}}},
        "needs a certificate to show",
    ),
}
# The oldest that the chart says it needs, and the newest that the validator knows.
_VERSIONS: Final = ("1.29", "1.37")
_SCHEMAS: Final = Path(__file__).parent / "schemas"
_GIVEN_SECRETS: Final = {
    *("node-tls", "router-tls", "processor-tls", "health-tls", "kafka-login", "kafka-ca", *"12345"),
    *("house", "scores-user", "house-cluster-ca-cert"),
}
_PROCESSES: Final = {"node": "node", "router": "router", "controller": "controller", "processor": "process"}
_QUICK: Final = ("minimal",)


def cases() -> list[Any]:
    return [pytest.param(each, id=each, marks=() if each in _QUICK else pytest.mark.long) for each in CASES]


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("helm")

    @cache
    def once(name: str) -> Rendered:
        return render(CASES[name], directory)

    return once


@pytest.fixture
def rendered(request: pytest.FixtureRequest, rendering: Any) -> Rendered:
    found: Rendered = rendering(request.param)
    return found


@pytest.fixture
def no_variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variables of ours but those that a test sets."""
    for name in [name for name in os.environ if name.startswith("STATEHOUSE_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def problems(document: Mapping[str, Any], version: str) -> list[str]:
    """Return what a cluster of that version would say against an object."""
    own = _SCHEMAS / f"{document['kind']}.json"
    if own.exists():
        validator = jsonschema.Draft202012Validator(json.loads(own.read_text()))
        found = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(document)]
        for template in nested(document, "podTemplateSpec"):
            pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "a"}, "template": template}
            found += problems(_with_images(pod), version)
        return found
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{document['kind']} {'.'.join(map(str, error.path))}: {error.message}"]
    return []


def _with_images(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a template's containers the image that the operator adds."""
    copied: Any = json.loads(json.dumps(pod))
    for container in copied["template"]["spec"]["containers"]:
        container.setdefault("image", "spark")
    return dict(copied)


@pytest.mark.feature("helm-chart-objects")
@pytest.mark.parametrize("rendered", cases(), indirect=True)
def test_objects_are_what_the_schemas_allow(rendered: Rendered) -> None:
    assert rendered.objects
    for version in _VERSIONS:
        assert [each for document in rendered.objects for each in problems(document, version)] == []


def test_the_schemas_would_notice(rendering: Any) -> None:
    rendered: Rendered = rendering("minimal")
    broken: Any = json.loads(json.dumps(rendered.of("StatefulSet")["scores-statehouse-node"]))
    broken["spec"]["template"]["spec"]["containers"][0]["imagee"] = "a"
    assert problems(broken, _VERSIONS[-1])
    for kind in ("ServiceMonitor", "PrometheusRule", "SparkApplication"):
        schema = json.loads((_SCHEMAS / f"{kind}.json").read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert problems({"apiVersion": schema["properties"]["apiVersion"]["const"], "kind": kind}, _VERSIONS[0])


@pytest.mark.feature("helm-chart-objects")
@pytest.mark.parametrize("rendered", cases(), indirect=True)
def test_what_an_object_names_exists(rendered: Rendered) -> None:
    names = [(each["apiVersion"], each["kind"], each["metadata"]["name"]) for each in rendered.objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, _, name in names)
    config_maps, claims = rendered.of("ConfigMap"), rendered.of("PersistentVolumeClaim")
    accounts, templates = rendered.of("ServiceAccount"), rendered.templates
    for name, template in templates.items():
        spec = template["spec"]
        assert spec.get("serviceAccountName", next(iter(accounts))) in accounts
        for volume in spec["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in config_maps
            if "secret" in volume:
                assert volume["secret"]["secretName"] in _GIVEN_SECRETS | rendered.of("Secret").keys()
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        volumes = {volume["name"] for volume in spec["volumes"]}
        volumes |= {"state"} if name in rendered.of("StatefulSet") else set()
        (container,) = spec["containers"]
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    labels = [template["metadata"]["labels"] for template in templates.values()]
    for selector in [*_selectors(rendered)]:
        assert any(selector.items() <= each.items() for each in labels), selector
    for service in rendered.of("Service").values():
        own = [
            each
            for each in templates.values()
            if service["spec"]["selector"].items() <= each["metadata"]["labels"].items()
        ]
        ports = {port["name"] for each in own for port in each["spec"]["containers"][0].get("ports", [])}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for scaler in rendered.of("HorizontalPodAutoscaler").values():
        (target,) = [rendered.of("Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]]
        assert "replicas" not in target["spec"], "each upgrade would undo the scaling"
    services = [service["metadata"]["labels"] for service in rendered.of("Service").values()]
    for monitor in rendered.of("ServiceMonitor").values():
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert sum(wanted.items() <= each.items() for each in services) == 1
        assert {key["name"] for key in nested(monitor, "secret")} <= _GIVEN_SECRETS


def test_rules_are_a_secret_and_nodes_are_for_our_own_unless_asked_otherwise(rendering: Any) -> None:
    rendered: Rendered = rendering("tls")
    (rules,) = rendered.of("Secret").values()
    assert "[[identity]]" in rules["stringData"]["rules.toml"]
    assert not any("rules.toml" in each["data"] for each in rendered.of("ConfigMap").values())
    for name in ("minimal", "policies for all"):
        found: Rendered = rendering(name)
        policy = next(each for key, each in found.of("NetworkPolicy").items() if key.endswith("-node"))
        (calls,) = (rule for rule in policy["spec"]["ingress"] if {"port": 7101, "protocol": "TCP"} in rule["ports"])
        callers = {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in calls["from"]}
        assert callers == {"router", "controller", "processor"}, "controllers only connect"


def _selectors(rendered: Rendered) -> Iterator[Mapping[str, str]]:
    for service in rendered.of("Service").values():
        yield service["spec"]["selector"]
    for kind in ("PodDisruptionBudget", "StatefulSet", "Deployment"):
        for each in rendered.of(kind).values():
            yield each["spec"]["selector"]["matchLabels"]
    for policy in rendered.of("NetworkPolicy").values():
        yield policy["spec"]["podSelector"]["matchLabels"]
        for selector in nested(policy["spec"].get("egress", []), "podSelector"):
            yield selector["matchLabels"]
    for template in rendered.templates.values():
        for constraint in template["spec"].get("topologySpreadConstraints", []):
            yield constraint["labelSelector"]["matchLabels"]


@pytest.mark.feature("helm-chart-objects")
@pytest.mark.parametrize("rendered", cases(), indirect=True)
def test_pods_may_do_nothing_that_they_need_not(rendered: Rendered) -> None:
    """As the Pod Security Standard `restricted` has it, and with a read-only root where the image is ours."""
    for name, template in rendered.templates.items():
        pod, (container,) = template["spec"]["securityContext"], template["spec"]["containers"]
        assert pod["runAsNonRoot"] is True
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["capabilities"] == {"drop": ["ALL"]}
        if not name.endswith(("-driver", "-executor")):
            assert own["readOnlyRootFilesystem"] is True
            assert template["spec"]["automountServiceAccountToken"] is False
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("rendered", cases(), indirect=True)
def test_settings_and_variables_are_understood(
    rendered: Rendered, no_variables: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "statehouse.toml"
    file.write_text(rendered.settings)
    assert check_file(file) == []
    assert tomllib.loads(rendered.settings)["bind_host"] in {"0.0.0.0", "::"}
    for container in _containers(rendered):
        with pytest.MonkeyPatch.context() as variables:
            environment = container.environment
            given = {name for name in environment if name.startswith("STATEHOUSE_")}
            for name in given:
                variables.setenv(name, str(file) if name == CONFIG_ENV else environment[name])
            process = parse(container.argv[1:])
            settings = load(PROCESSES[process], {})
            assert given - {CONFIG_ENV} <= {each.variable for each in PROCESSES[process].declared().values()}
        match settings:
            case NodeSettings():
                _check_node(container, settings)
            case RouterSettings():
                _check_router(container, settings)
        assert container.ports["metrics"] == settings.metrics_port  # type: ignore[attr-defined] # all have one


def _containers(rendered: Rendered) -> Iterator[Container]:
    for component in _PROCESSES:
        for name, template in rendered.templates.items():
            labels = template["metadata"]["labels"]
            if labels["app.kubernetes.io/component"] == component and "args" in template["spec"]["containers"][0]:
                yield Container(template, f"{name}-0")


def _check_node(container: Container, settings: NodeSettings) -> None:
    assert settings.instance_id == container.pod, "the ordinal is in the pod's name"
    assert settings.advertised_host.startswith(f"{container.pod}.")
    assert f".{NAMESPACE}.svc." in settings.advertised_host
    assert settings.node_port == container.ports["grpc"]
    assert container.mounts["state"] == str(settings.state_dir)
    stops_s = (settings.drain_timeout_ms + settings.stop_grace_ms) / 1000 + 30
    assert container.grace_s >= stops_s, "a drain is followed by ending calls, flushing and closing"


def _check_router(container: Container, settings: RouterSettings) -> None:
    assert settings.router_port == container.ports["grpc"]
    assert settings.http_port == container.ports.get("http")
    assert container.grace_s >= (settings.lame_duck_ms + settings.stop_grace_ms) / 1000 + 15


@pytest.mark.parametrize("rendered", cases(), indirect=True)
def test_probes_tell_a_slow_start_a_restore_and_a_hang_apart(rendered: Rendered) -> None:
    is_encrypted = "tls_callers" in rendered.settings
    for container in _containers(rendered):
        probes = container.probes
        how = "exec" if is_encrypted else ("grpc" if "grpc" in container.ports else "httpGet")
        assert {next(iter({"exec", "grpc", "httpGet"} & probe.keys())) for probe in probes.values()} == {how}
        asked = {name: _asked(probe) for name, probe in probes.items()}
        if "grpc" in container.ports:
            assert asked == {"startup": "liveness", "liveness": "liveness", "readiness": "readiness"}
        else:
            assert asked == {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"}
        liveness = probes["liveness"]
        assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60, "a pause is no hang"


def _asked(probe: Mapping[str, Any]) -> str:
    if "grpc" in probe:
        return str(probe["grpc"]["service"])
    if "httpGet" in probe:
        return str(probe["httpGet"]["path"])
    (asked,) = [word for word in probe["exec"]["command"] if word.startswith(("--service=", "--http="))]
    return str(asked.partition("=")[2])


def test_each_worker_of_a_router_is_scraped(rendering: Any) -> None:
    rendered: Rendered = rendering("workers")
    ports = {name: port for name, port in rendered.container("router").ports.items() if name != "grpc"}
    assert ports == {"metrics": 9100, "metrics-1": 9101, "metrics-2": 9102}
    (monitor,) = rendered.of("ServiceMonitor").values()
    assert {each["port"] for each in monitor["spec"]["endpoints"]} == ports.keys()
    service = rendered.of("Service")["scores-statehouse-metrics"]
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]} == ports
    policy = rendered.of("NetworkPolicy")["scores-statehouse-router"]
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} > set(ports.values())


@pytest.mark.parametrize("name", ["placement", "spark operator"])
def test_pods_go_where_their_role_may(name: str, rendering: Any) -> None:
    rendered: Rendered = rendering(name)
    secrets = CASES[name].get("image", {}).get("pullSecrets", [])
    placed = [each for workload, each in rendered.templates.items() if name == "placement" or "processor" in workload]
    assert placed
    for template in placed:
        assert template["spec"]["nodeSelector"] == _PLACEMENT["nodeSelector"]
        assert template["spec"]["tolerations"] == _PLACEMENT["tolerations"]
        assert template["metadata"]["annotations"].items() > _PLACEMENT["annotations"].items()
        assert template["metadata"]["labels"].items() > _PLACEMENT["podLabels"].items()
        for key in ("affinity", "priorityClassName", "initContainers"):
            assert template["spec"][key] == _PLACEMENT[key]
        (container,) = template["spec"]["containers"]
        assert container["env"][-1:] == _PLACEMENT["extraEnv"]
        assert _PLACEMENT["extraVolumeMounts"][0] in container["volumeMounts"]
        assert _PLACEMENT["extraVolumes"][0] in template["spec"]["volumes"]
        assert [each["name"] for each in template["spec"].get("imagePullSecrets", [])] == secrets


def test_a_budget_says_one_thing(rendering: Any) -> None:
    """Kubernetes refuses both, and values.yaml gives one of them."""
    rendered: Rendered = rendering("budgets by what must be left")
    budgets = {name: each["spec"] for name, each in rendered.of("PodDisruptionBudget").items()}
    asked = {name: {key: spec[key] for key in spec if key != "selector"} for name, spec in budgets.items()}
    assert asked == {
        "scores-statehouse-node": {"minAvailable": 2},
        "scores-statehouse-router": {"minAvailable": "50%"},
    }


@pytest.mark.long
def test_alerts_find_the_processes_that_are_scraped(rendering: Any) -> None:
    rendered: Rendered = rendering("alerts")
    (monitor,), (rule,) = (rendered.of(kind).values() for kind in ("ServiceMonitor", "PrometheusRule"))
    (endpoint,) = monitor["spec"]["endpoints"]
    by_kind, application = endpoint["relabelings"]
    components = {each["metadata"]["labels"]["app.kubernetes.io/component"] for each in rendered.templates.values()}
    jobs = {by_kind["replacement"].replace("$1", component) for component in components}
    assert application == {"targetLabel": "application", "replacement": MINIMAL["applicationId"]}
    patterns = re.findall(r'job=~?"([^"]+)"', json.dumps(rule).replace('\\"', '"'))
    assert patterns
    assert all(any(re.fullmatch(pattern, job) for job in jobs) for pattern in patterns)
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text())


def test_dashboards_and_runbooks_are_where_the_values_say(rendering: Any) -> None:
    rendered: Rendered = rendering("dashboards")
    dashboards = rendered.of("ConfigMap")["scores-statehouse-dashboards"]
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert dashboards["metadata"]["annotations"] == {"grafana_folder": "Statehouse"}
    assert dashboards["data"] == {path.name: path.read_text() for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    (rule,) = rendered.of("PrometheusRule").values()
    urls = {each["alert"]: each["annotations"]["runbook_url"] for each in _rules_of(rule) if "alert" in each}
    assert urls == {name: f"https://docs.house/runbooks/#{name.lower()}" for name in urls}
    assert len(urls) > 30
    (account,) = rendered.of("ServiceAccount").values()
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/state"}


def _rules_of(rule: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for group in rule["spec"]["groups"] for each in group["rules"]]


def test_secrets_of_strimzi_are_read_as_they_are(rendering: Any) -> None:
    rendered: Rendered = rendering("strimzi")
    settings = tomllib.loads(rendered.settings)
    assert settings["kafka_credentials"] == "/etc/statehouse-kafka/sasl.jaas.config"
    assert settings["kafka_ca"] == "/etc/statehouse-kafka-tls/ca.crt"


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_helm_finds_nothing_to_say(name: str, tmp_path: Path) -> None:
    said = helm("lint", str(CHART), "--strict", "--namespace", NAMESPACE, values=CASES[name], directory=tmp_path)
    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.feature("helm-chart-objects")
@pytest.mark.long
@pytest.mark.parametrize("name", REFUSED)
def test_values_that_can_not_be_are_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    values, reason = REFUSED[name]
    with pytest.raises(Refused, match=reason):
        render(values, tmp_path)


@pytest.mark.long
def test_each_zone_has_its_nodes_and_its_rack(rendering: Any) -> None:
    rendered: Rendered = rendering("zones")
    racks = {}
    for name, each in rendered.of("StatefulSet").items():
        container = Container(each["spec"]["template"], f"{name}-0")
        ((term,),) = [nested(each, "nodeSelectorTerms")]
        assert each["spec"]["template"]["spec"]["affinity"].items() > _PLACEMENT["affinity"].items()
        racks[name] = container.environment["STATEHOUSE_RACK"]
        assert term[0]["matchExpressions"][0]["values"] == [racks[name]]
        assert each["spec"]["updateStrategy"] == {"type": "OnDelete"}
        assert each["spec"]["serviceName"] in rendered.of("Service")
    assert racks == {"scores-statehouse-node-a": "eu-central-1a", "scores-statehouse-node-b": "eu-central-1b"}


@pytest.mark.long
def test_a_label_of_the_pod_is_the_rack(rendering: Any) -> None:
    rendered: Rendered = rendering("racks of labels")
    for component, variable in (("node", "STATEHOUSE_RACK"), ("router", "STATEHOUSE_ROUTER_RACK")):
        (field,) = (each for each in rendered.container(component).spec["env"] if each["name"] == variable)
        assert field["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"


def test_versions_and_generated_parts_are_those_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)
    command = [sys.executable, "-m", "tools.generate_chart", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_every_value_has_a_type() -> None:
    """Each key of values.yaml stands in the schema, where nothing else may stand."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: object, described: Any, path: str) -> None:
        described = schema["definitions"][described["$ref"].rpartition("/")[2]] if "$ref" in described else described
        if isinstance(value, dict) and "properties" in described:
            assert value.keys() <= described["properties"].keys(), path
            assert described["additionalProperties"] is False, path
            for key, each in value.items():
                check(each, described["properties"][key], f"{path}.{key}")

    check(values, schema, "values")
    jsonschema.Draft7Validator.check_schema(schema)
    jsonschema.Draft7Validator(schema).validate(merged(values, MINIMAL))
