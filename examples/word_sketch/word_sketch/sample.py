"""The sample data: what was said in two channels."""

from __future__ import annotations

from typing import Final

from statehouse.local.samples import Sample

from .topology import MESSAGES

TOPICS: Final[dict[str, dict[str, str]]] = {MESSAGES: {}}
RECORDS: Final = [
    Sample(MESSAGES, "news", "Kafka keeps what was written"),
    Sample(MESSAGES, "weather", "rain, rain, sun"),
]
