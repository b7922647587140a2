"""Write what the Helm chart has from elsewhere; `--check` fails when it is out of date.

In `values.schema.json` the definitions of settings, from their declarations; in `Chart.yaml` the project's version; and
the alert rules and dashboards, which a chart can only read from a folder of its own.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any, Final

from statehouse.settings import PROCESSES
from tools import generate_dashboards
from tools.generated_page import ROOT, write_or_check_all

CHART: Final = ROOT / "deploy" / "helm" / "statehouse"
DESCRIPTION: Final = CHART / "Chart.yaml"
SCHEMA: Final = CHART / "values.schema.json"
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yaml"
CHARTS_RULES: Final = CHART / "files" / "rules.yaml"
CHARTS_DASHBOARDS: Final = CHART / "files" / "dashboards"

OWNED: Final = frozenset(
    {
        *("application_id", "bootstrap", "bind_host", "metrics_port", "node_port", "router_port", "http_port"),
        *("instance_id", "advertised_host", "advertised_port", "rack", "router_rack", "state_dir", "checkpoint_dir"),
        *("kafka_security_protocol", "kafka_sasl_mechanism", "kafka_credentials"),
        *("kafka_ca", "kafka_certificate", "kafka_key"),
        *("tls_certificate", "tls_key", "tls_ca", "tls_callers", "tls_node_name", "security_rules"),
        *("lame_duck_ms", "http_allowed_hosts", "router", "router_metrics", "tls_router_name"),
    }
)
"""Settings that the chart decides by values of its own."""
_SHARED: Final = "settings"
_KEPT: Final = (
    *("type", "anyOf", "enum", "const", "items", "additionalProperties"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "description"),
)


def schema(written: str) -> str:
    """Return the values' schema with the settings as they are declared now."""
    found: dict[str, Any] = json.loads(written)
    roles = {name: _properties(cls) for name, cls in PROCESSES.items() if name != "web"}
    shared = {name: each for properties in roles.values() for name, each in properties.items()}
    found["definitions"] = {
        **found["definitions"],
        _SHARED: _object(shared),
        **{f"{name}Settings": _object(properties) for name, properties in roles.items()},
    }
    return json.dumps(found, indent=2) + "\n"


def description(written: str) -> str:
    """Return the chart's description with the project's version."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return re.sub(r"^(version|appVersion): .*$", rf"\1: {version}", written, flags=re.MULTILINE)


def _properties(cls: Any) -> dict[str, Any]:  # noqa: ANN401 - a class of settings
    described = cls.model_json_schema()["properties"]
    return {
        name: {key: value for key, value in each.items() if key in _KEPT}
        for name, each in described.items()
        if name not in OWNED
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(sorted(properties.items()))}


def files() -> dict[str, str]:
    """Return the chart's files: path from the root -> content."""
    wanted = {
        SCHEMA: schema(SCHEMA.read_text()),
        DESCRIPTION: description(DESCRIPTION.read_text()),
        CHARTS_RULES: RULES.read_text(),
        **{CHARTS_DASHBOARDS / name: content for name, content in generate_dashboards.files().items()},
    }
    return {str(path.relative_to(ROOT)): content for path, content in wanted.items()}


if __name__ == "__main__":
    write_or_check_all(
        __doc__,
        files,
        "the settings, the version, the rules and the dashboards",
        all_of=str(CHARTS_DASHBOARDS.relative_to(ROOT) / "*.json"),
    )
