"""Which replicas of this node belong to a built store: `statehouse.contract.first_batch` has the rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from query_service.replicas.replica import StoreReplica
from statehouse.contract.first_batch import Ends, obstacle
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason

_NOTHING: Final[Mapping[str, Ends]] = MappingProxyType({})


class FirstBatches:
    """Tells which replicas are built; what is built stays so as long as the replica is open.

    `proven` is what the records of the commits topic prove, by store. `is_read` returns whether that topic has been
    read to its end. May be asked from any thread.
    """

    def __init__(self, proven: Mapping[str, Ends] = _NOTHING, is_read: Callable[[], bool] = lambda: True) -> None:
        self._proven, self._is_read = proven, is_read

    def require(self, spec: StoreSpec, partition: int, replica: StoreReplica) -> None:
        """Return if the replica may answer. `spec` is the newest assignment's: a replica may be older.

        Raises:
            LookupFailure: STORE_NOT_BUILT; PARTITION_RESTORING while the commits topic is being read.

        """
        if replica.is_built or not spec.committed:
            return
        found = self._obstacle(spec, partition, replica)
        if found is not None:
            raise LookupFailure(*found, {"store": spec.name, "partition": str(partition)})

    def is_built(self, spec: StoreSpec, partition: int, replica: StoreReplica) -> bool:
        """Whether the replica may answer as far as first batches go."""
        return replica.is_built or not spec.committed or self._obstacle(spec, partition, replica) is None

    def _obstacle(self, spec: StoreSpec, partition: int, replica: StoreReplica) -> tuple[Reason, str] | None:
        found = obstacle(
            spec.name,
            partition,
            replica.position,
            self._proven.get(spec.name),
            had_records=replica.had_records,
            is_read=self._is_read(),
        )
        if found is None:
            replica.is_built = True
        return found
