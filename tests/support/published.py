"""The assignments that a controller has published, as nodes and routers read them."""

from __future__ import annotations

from typing import Self

from statehouse.contract.assignment import Assignment, AssignmentReader
from statehouse.contract.topology import assignment_topic
from statehouse.kafka.control_log import ControlLogReader


class PublishedEpochs:
    """Follows the assignment topic of an application while entered; a reader that breaks fails the test at the end."""

    def __init__(self, bootstrap: str, application_id: str) -> None:
        self.bootstrap, self.application_id = bootstrap, application_id
        self._assignment = Assignment()
        self._reader = AssignmentReader()
        self._defects: list[Exception] = []
        self._log = ControlLogReader(
            bootstrap,
            assignment_topic(application_id),
            self._take,
            client_id=f"{application_id}-test",
            on_broken=self._defects.append,
        )

    def __enter__(self) -> Self:
        self._log.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._log.stop()
        assert kind is not None or not self._defects, self._defects

    @property
    def assignment(self) -> Assignment:
        """The newest, an empty one of epoch 0 before the first."""
        return self._assignment

    def _take(self, key: bytes | None, value: bytes | None, _timestamp_ms: int) -> None:
        snapshot = self._reader.feed(key, value)
        if snapshot is not None:
            self._assignment = snapshot
