"""The inventory, and the last events of users, in one application that reads few records in a batch."""

from __future__ import annotations

from typing import Any, Final, cast

from pyspark.sql import DataFrame

from examples.features import topology as features
from examples.inventory import topology as inventory
from processor.application import Application

application_id = "killed-tables"

PER_BATCH: Final = 100


class _InSmallBatches:
    """An application whose sources are read in small batches, so that there is a backlog."""

    def __init__(self, app: Application) -> None:
        self._app = app

    def stream(self, topic: str) -> DataFrame:
        return self._app.stream(topic, maxOffsetsPerTrigger=str(PER_BATCH))

    def table(self, topic: str) -> DataFrame:
        return self._app.table(topic, maxOffsetsPerTrigger=str(PER_BATCH))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._app, name)


def build(app: Application) -> None:
    """Declare `parse_cdc` into a store, `aggregate_table` of its rows, and a store with `newest_by`."""
    slow = cast("Application", _InSmallBatches(app))
    inventory.build(slow)
    features.declare_online(slow, features.judged_events(slow))
