"""docs/ownership.md lists every setting of ownership, with the default it has."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from pydantic.fields import FieldInfo

from processor.ownership.model import PlannerSettings
from processor.ownership.settings import OwnershipSettings
from statehouse.settings import NodeSettings, ProcessSettings

PAGE = Path(__file__).parents[2] / "docs" / "ownership.md"
OF_NODES = ("capacity", "rack", "instance_id", "drain_timeout_ms", "state_cleanup_delay_ms")
COMPUTED = {"handover_linger_ms": "2 x heartbeat_interval_ms"}


def of_the_controller() -> list[str]:
    """What the controller and its planner are told, under the names that it is set by."""
    told = [field.name for cls in (OwnershipSettings, PlannerSettings) for field in fields(cls)]
    return [re.sub("_s$", "_ms", name) for name in told if name != "planner"]


def documented() -> dict[str, str]:
    """The defaults in the page's rows `| setting | of | default | ...`."""
    rows = re.findall(r"^\| `(\w+)` \| (?:both|processor|node) \| ([^|]+) \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "no setting twice"
    return dict(rows)


def shown(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if name in COMPUTED:
        assert field.default is None
        return COMPUTED[name]
    return str(field.default) or "none"


def test_every_setting_of_ownership_is_listed_with_its_default() -> None:
    expected = {name: shown(name, ProcessSettings.model_fields[name]) for name in of_the_controller()}
    expected |= {name: shown(name, NodeSettings.model_fields[name]) for name in OF_NODES}
    assert documented() == expected
