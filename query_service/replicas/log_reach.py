"""How far changelogs reach back: those of window and session stores lose what is old, by the broker's clock.

A replica that has read such a record keeps its entry for as long as the stream time wants it, and a fresh one doesn't
get it. The two are equal in what came later.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from confluent_kafka.admin import AdminClient

from statehouse.contract.moments import unavailable
from statehouse.contract.topology import StoreSpec
from statehouse.kafka.offsets import earliest_offsets, first_record_ms
from statehouse.kafka.renewed import RenewedAdmin
from statehouse.kafka.topics import topic_settings
from statehouse.runtime.brokers import Brokers

NOTHING_LOST: Final = -1
ALL_LOST: Final = 2**63 - 1
_CLOCKS_MS: Final = 60_000
"""By how much the clocks of brokers may differ that have led the partition one after the other."""


def recorded_from_ms(first_offset: int, first_ms: int | None) -> int:
    """Return from which time on a log has all records, in milliseconds since 1970. Their times are the broker's.

    Args:
        first_offset: its start.
        first_ms: the time of the first record from there on; None: there is none.

    """
    if first_offset == 0:
        return NOTHING_LOST
    return ALL_LOST if first_ms is None else first_ms + _CLOCKS_MS


class LogReach:
    """Asks the broker how far logs reach back. Call it in worker threads."""

    def __init__(self, brokers: Brokers, client_id: str) -> None:
        self._brokers, self._client_id = brokers, f"{client_id}-sums"
        self._admin: RenewedAdmin | None = None  # most nodes never ask

    def recorded_from_ms(self, spec: StoreSpec, partition: int) -> int:
        """Return from which time on the changelog of a window or session store has all records.

        Raises:
            LookupFailure: MOMENTS_UNAVAILABLE, it has lost some, and producers chose the times of all.
            KafkaException: the broker can't be reached, or refuses.

        """
        admin = self._admin = self._admin or RenewedAdmin(self._brokers, self._client_id)
        return admin.ask(partial(_asked, spec, partition))


def _asked(spec: StoreSpec, partition: int, admin: AdminClient) -> int:
    at = (spec.changelog_topic, partition)
    first_offset = earliest_offsets(admin, [at])[at]
    if first_offset == 0:
        return NOTHING_LOST
    if topic_settings(admin, spec.changelog_topic)["message.timestamp.type"] != "LogAppendTime":
        why = f"{spec.changelog_topic} has deleted records, and without LogAppendTime nobody knows which"
        raise unavailable(spec.name, why)
    return recorded_from_ms(first_offset, first_record_ms(admin, *at))
