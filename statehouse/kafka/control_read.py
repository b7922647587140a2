"""Reads control topics once, from the beginning to the present end, for programs that don't follow them."""

from __future__ import annotations

import time
from collections.abc import Mapping

from statehouse.errors import LookupFailure, Reason
from statehouse.kafka.control_log import ControlLogReader, OnRecord
from statehouse.runtime.brokers import Brokers


def read_to_ends(brokers: Brokers | str, topics: Mapping[str, OnRecord], client_id: str, timeout_s: float) -> None:
    """Call back for each record that the topics hold now, in offset order by topic; return once all are read.

    Each topic's callback runs on a thread of its own.

    Raises:
        LookupFailure: UNREACHABLE, the topics could not be read in time.
        AccessRefused: the brokers refuse the login, or a right is missing.

    """
    deadline = time.monotonic() + timeout_s
    defects: list[Exception] = []
    readers = {
        topic: ControlLogReader(
            brokers, topic, take, client_id=client_id, on_broken=defects.append, confirm_interval_s=0.1
        )
        for topic, take in topics.items()
    }
    for reader in readers.values():
        reader.start()
    try:
        for topic, reader in readers.items():
            while not reader.wait_caught_up(0.1):
                if defects:
                    raise defects[0]
                if time.monotonic() >= deadline:
                    message = (
                        f"topic {topic} could not be read to its end within {timeout_s:g} s: check --bootstrap "
                        "and --application-id, that the processor has run once, or allow more time with --timeout"
                    )
                    raise LookupFailure(Reason.UNREACHABLE, message, {"target": str(brokers), "topic": topic})
    finally:
        for reader in readers.values():
            reader.stop()
