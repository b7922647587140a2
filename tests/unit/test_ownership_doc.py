"""docs/ownership.md gives a reason for every setting of ownership."""

from __future__ import annotations

import re
from pathlib import Path

from statehouse.settings import NodeSettings, ProcessorSettings
from statehouse.settings.declaration import SettingGroup

PAGE = Path(__file__).parents[2] / "docs" / "ownership.md"
# Its state is what a node can get its tasks back with.
BESIDE = {"state_cleanup_delay_ms": "node"}


def test_every_setting_of_ownership_has_its_reason() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (both|processor|node) \| [^|]+ \|", PAGE.read_text(), re.MULTILINE)
    assert len(rows) == len(dict(rows)), "no setting twice"
    processor, node = (
        {each.name for each in cls.declared().values() if each.group is SettingGroup.OWNERSHIP}
        for cls in (ProcessorSettings, NodeSettings)
    )
    expected = dict.fromkeys(processor - node, "processor") | dict.fromkeys(node - processor, "node")
    assert dict(rows) == expected | dict.fromkeys(processor & node, "both") | BESIDE
