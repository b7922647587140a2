"""Runs a streaming query until it is asked to end."""

from __future__ import annotations

import signal
from threading import Event
from typing import Final

from pyspark.sql.streaming import DataStreamWriter

_LOOK_S: Final = 0.2


def run_until_sigterm(writer: DataStreamWriter) -> None:
    """Start a query, and return when it has ended, on its own or by SIGTERM. Raise what it has failed with."""
    ended = Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ended.set())
    query = writer.start()
    while query.isActive and not ended.wait(_LOOK_S):
        pass
    if query.isActive:
        query.stop()
    query.awaitTermination()
