"""What `deploy/prometheus` and `deploy/grafana` have, as tests look at it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ROOT / "deploy" / "prometheus" / "rules.yaml"
DASHBOARDS: Final = ROOT / "deploy" / "grafana"
RUNBOOKS: Final = ROOT / "docs" / "runbooks.md"


@cache
def rules() -> list[dict[str, Any]]:
    """Return all rules, those that record and those that alert."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def runbook_commands() -> list[str]:
    """Return what the runbooks have typed after `statehouse`, each once; STORE, KEY and NODE stand for names."""
    return sorted(set(re.findall(r"`statehouse ([^`]+)`", RUNBOOKS.read_text(encoding="utf-8"))))


def runbook_metrics() -> set[str]:
    """Return the metrics that the runbooks name."""
    return set(re.findall(r"\bstatehouse_\w+", RUNBOOKS.read_text(encoding="utf-8")))


def dashboard_queries() -> Iterator[tuple[str, str, str]]:
    """Yield each query of the committed dashboards: dashboard, panel, expression."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                yield path.stem, panel["title"], target["expr"]


@cache
def documented_metrics() -> dict[str, frozenset[str]]:
    """Return the series that processes serve, as docs/metrics.md lists them, and the labels of each."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    found: dict[str, frozenset[str]] = {}
    for name, kind, cell in re.findall(r"^\| `(statehouse_\w+)` \| (\w+) \| ([^|]*)\|", page, re.MULTILINE):
        labels = frozenset(re.findall(r"`(\w+)`", cell))
        if kind == "histogram":
            found |= {f"{name}_count": labels, f"{name}_sum": labels, f"{name}_bucket": labels | {"le"}}
        else:
            found[name] = labels
    return found


def labels_in(expression: str) -> set[str]:
    """Return the labels that an expression selects, groups or matches by."""
    selected = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = re.findall(r"\b(?:by|on) \(([\w, ]*)\)", expression)
    return {*selected, *(label for each in grouped for label in re.findall(r"\w+", each))} - {"__name__"}


def metrics_in(expression: str) -> tuple[set[str], list[str]]:
    """Return the metrics that an expression names, and the patterns by which it names others."""
    patterns = re.findall(r'__name__=~"([^"]+)"', expression)
    named = re.findall(r"(?<![\w:])statehouse_\w+", re.sub(r'"[^"]*"', '""', expression))
    return set(named), patterns
