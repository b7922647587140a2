"""Makes HTML and JSON of the same values. Jinja escapes whatever comes from outside."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.datastructures import QueryParams

from statehouse.web.pages import figures
from statehouse.web.pages.partitions import Condition
from statehouse.web.pages.views import heat
from statehouse.web.pages.views.overview import Point

STATIC: Final = Path(__file__).with_name("static")
SPARK_WIDTH: Final = 600
SPARK_HEIGHT: Final = 80
CELL_WIDTH: Final = 7
CELL_HEIGHT: Final = 12
_WORD_ENDS: Final = re.compile(r"[_./]")


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("statehouse.web.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(figures.FILTERS, breakable=breakable)
    environment.globals.update(
        Condition=Condition,
        UNKNOWN=figures.UNKNOWN,
        cell_height=CELL_HEIGHT,
        cell_width=CELL_WIDTH,
        chart_points=_chart_points,
        drawn=heat.drawn,
        folded=figures.folded,
        link=link,
        spark=_spark,
    )
    return environment


def breakable(name: str) -> Markup:
    """Return a name that may go on in another line where a word of it ends."""
    return Markup(_WORD_ENDS.sub(lambda ends: f"{ends[0]}<wbr>", escape(name)))  # noqa: S704 - it is escaped


def html(template: str, **values: Any) -> str:  # noqa: ANN401 - whatever the template shows
    """Return a page or a part of one."""
    return _templates().get_template(template).render(**values)


def link(path: str, given: QueryParams | Mapping[str, Any], **changes: Any) -> str:  # noqa: ANN401 - numbers and texts
    """Return a link to a page with the query that was given, changed; None takes a name out."""
    query = {name: value for name, value in {**dict(given), **changes}.items() if value not in {None, ""}}
    return f"{path}?{urlencode(query)}" if query else path


def as_json(value: Any) -> Any:  # noqa: ANN401 - any of the views
    """Return a view as JSON's own types: enumerations by name, what isn't known as null, properties left out."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple | list):
        return [as_json(each) for each in value]
    if isinstance(value, Enum):
        return value.name.lower() if isinstance(value, Condition) else value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _chart_points(points: Sequence[Point]) -> str:
    """Return the points as the charts' script reads them."""
    return json.dumps(
        {
            "times": [point.at_ms / 1_000 for point in points],
            "lookups": [point.lookups for point in points],
            "lag": [point.lag for point in points],
            "failed": [point.failed for point in points],
        }
    )


def _spark(points: Sequence[Point], name: str) -> Markup:
    """Return a line of one of the points' numbers, for readers without JavaScript."""
    values = [(point.at_ms, value) for point in points if (value := getattr(point, name)) is not None]
    most = max((value for _, value in values), default=0.0) or 1.0
    first_ms = points[0].at_ms if points else 0
    step = SPARK_WIDTH / max(1, points[-1].at_ms - first_ms if points else 0)
    line = " ".join(
        f"{(at_ms - first_ms) * step:.1f},{SPARK_HEIGHT - 2 - value / most * (SPARK_HEIGHT - 6):.1f}"
        for at_ms, value in values
    )
    return Markup(  # noqa: S704 - numbers of our own
        f'<svg class="spark" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="up to {figures.rate(most)}"><polyline points="{line}"/></svg>'
    )
