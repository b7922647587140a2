"""Write the Grafana dashboards of `deploy/grafana/` from `tools/dashboards.py`.

`python -m tools.generate_dashboards` writes them; with `--check` it fails when the committed files differ.
"""

from __future__ import annotations

import json
from typing import Any, Final

from tools.dashboards import DASHBOARDS, Dashboard, Panel
from tools.generated_page import ROOT, write_or_check_all

FOLDER: Final = ROOT / "deploy" / "grafana"
# Grafana's grid has so many columns.
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_NUMBER_HEIGHT: Final = 5
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_VARIABLES: Final[list[dict[str, Any]]] = [
    {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
    {
        "name": "application",
        "label": "Application",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(statehouse_router_table_epoch, application)", "refId": "application"},
        "refresh": 2,
        "sort": 1,
    },
]


def files() -> dict[str, str]:
    """Return the dashboards' files: name -> content."""
    return {f"{each.uid}.json": json.dumps(document(each), indent=2, ensure_ascii=False) + "\n" for each in DASHBOARDS}


def document(dashboard: Dashboard) -> dict[str, Any]:
    """Return a dashboard as Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in dashboard.rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": heading,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": _COLUMNS, "h": 1},
            }
        )
        top += 1
        height = _NUMBER_HEIGHT if all(panel.is_number for panel in row) else _HEIGHT
        in_line = min(len(row), 4)
        width = _COLUMNS // in_line
        for n, panel in enumerate(row):
            line, column = divmod(n, in_line)
            place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            panels.append(_panel(len(panels) + 1, panel, place))
        top += height * (1 + (len(row) - 1) // in_line)
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["statehouse"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "links": [
            {
                "type": "dashboards",
                "title": "Statehouse",
                "tags": ["statehouse"],
                "asDropdown": True,
                "includeVars": True,
            }
        ],
        "templating": {"list": _VARIABLES},
        "panels": panels,
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": _SOURCE, "expr": query.expression, "legendFormat": query.legend}
            for n, query in enumerate(panel.queries)
        ],
    }
    if panel.is_number:
        made["options"] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "textMode": "value_and_name"}
    else:
        made["options"] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return made


if __name__ == "__main__":
    write_or_check_all(
        __doc__,
        lambda: {str((FOLDER / name).relative_to(ROOT)): content for name, content in files().items()},
        "the dashboards of tools/dashboards.py",
        all_of=str(FOLDER.relative_to(ROOT) / "*.json"),
    )
