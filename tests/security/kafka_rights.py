"""The rights that docs/kafka-security.md lists, as ACLs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType

from tests.support.secured_kafka import Right

_PAGE: Final = Path(__file__).parents[2] / "docs" / "kafka-security.md"
_ROW: Final = re.compile(
    r"^\| (\w+) \| (topic|group|transactional id|cluster) \| `(\S+)` \| ([A-Z_, ]+) \|$", re.MULTILINE
)
_KINDS: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional id": ResourceType.TRANSACTIONAL_ID,
    "cluster": ResourceType.BROKER,  # as the client calls it
}


def documented(who: str, application: str, sources: Sequence[str] = ()) -> list[Right]:
    """Return the rights that the page's table gives to a kind of process."""
    found = list(_documented(who, application, sources))
    assert found, f"{_PAGE} has no rights for {who}"
    return found


def _documented(who: str, application: str, sources: Sequence[str]) -> Iterator[Right]:
    for row in _ROW.finditer(_PAGE.read_text(encoding="utf-8")):
        if row[1] != who:
            continue
        names = sources if row[3] == "<source>" else (row[3].replace("<application>", application),)
        for name in names:
            pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
            for operation in row[4].split(", "):
                yield _KINDS[row[2]], pattern, name.removesuffix("*"), AclOperation[operation]
