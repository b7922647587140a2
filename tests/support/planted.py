"""Writes into a store of a node that is down what its changelog doesn't say, as a defect would.

It is done by the engine's own ways, so that all checksums of its files are valid, and the checkpoint stays as it was.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.stores.segments import family_of
from query_service.stores.timestamps import timestamped
from statehouse.keys import ordered as ordered_keys
from tests.support.go_program import run_go_test


class Planted(NamedTuple):
    """An entry that is written; without a value the key is deleted.

    `segment`: the number of the segment that has it, whose entry key `key` is; None in a key-value store.
    """

    key: bytes
    value: bytes | None
    timestamp_ms: int = 0
    segment: int | None = None

    @property
    def placed_by(self) -> bytes:
        """The key that decides on the partition."""
        return self.key if self.segment is None else ordered_keys.split(self.key)[0]


def plant(folder: Path, engine: str, entries: Sequence[Planted]) -> None:
    """Write entries into the store in a folder. `engine`: as the node's setting."""
    if engine == "python":
        opened = RocksDBEngine(folder)
        checkpoint = opened.checkpoint()
        assert checkpoint is not None, folder
        for each in entries:
            family = "default" if each.segment is None else family_of(each.segment)
            opened.write({family: [(each.key, timestamped(each.value, each.timestamp_ms))]}, checkpoint)
        opened.close()
        return
    plan = folder.parent / "planted.json"
    written = [
        {
            "Key": base64.b64encode(each.key).decode(),
            "Value": None if each.value is None else base64.b64encode(each.value).decode(),
            "TimestampMS": each.timestamp_ms,
            "Segment": each.segment,
        }
        for each in entries
    ]
    plan.write_text(json.dumps({"Path": str(folder / "pebble"), "Entries": written}))
    try:
        run_go_test("stores", "TestPlant", planted=plan)
    finally:
        plan.unlink()
