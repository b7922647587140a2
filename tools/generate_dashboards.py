"""Write the Grafana dashboards of `deploy/grafana/` from `tools/dashboards.py`.

`python -m tools.generate_dashboards` writes them; with `--check` it fails when the committed files differ.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from tools.dashboards import DASHBOARDS, Dashboard, Panel

FOLDER: Final = Path(__file__).resolve().parent.parent / "deploy" / "grafana"
# Grafana's grid has so many columns.
_COLUMNS: Final = 24
_HEIGHT: Final = 8
_NUMBER_HEIGHT: Final = 5
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


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
                "gridPos": _place(top),
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
        "templating": {"list": [_datasource(), _application()]},
        "panels": panels,
    }


def _place(top: int) -> dict[str, int]:
    return {"x": 0, "y": top, "w": _COLUMNS, "h": 1}


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


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _application() -> dict[str, Any]:
    return {
        "name": "application",
        "label": "Application",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": "label_values(statehouse_router_table_epoch, application)", "refId": "application"},
        "refresh": 2,
        "sort": 1,
    }


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the committed files differ")
    written = files()
    if not parser.parse_args().check:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name, content in written.items():
            (FOLDER / name).write_text(content, encoding="utf-8")
        print(f"{len(written)} dashboards written")
        return
    stale = [name for name, content in written.items() if not _is(FOLDER / name, content)]
    extra = [path.name for path in FOLDER.glob("*.json") if path.name not in written]
    if stale or extra:
        sys.exit(f"dashboards differ from tools/dashboards.py: run `make docs` ({', '.join([*stale, *extra])})")


def _is(path: Path, content: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == content


if __name__ == "__main__":
    main()
