"""What the client answers about offsets, told from what the broker did."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaException
from confluent_kafka.admin import ListOffsetsResultInfo

from statehouse.kafka.offsets import earliest_offsets, last_stable_offsets


class FakeAdmin:
    def __init__(self, offsets: Mapping[int, int]) -> None:
        self._offsets = offsets
        self.looks = 0

    def list_topics(self, **_options: Any) -> None:
        self.looks += 1

    def list_offsets(self, request: Any, **_options: Any) -> dict[Any, Future[ListOffsetsResultInfo]]:
        answers = {}
        for at in request:
            answers[at] = future = Future[ListOffsetsResultInfo]()
            future.set_result(ListOffsetsResultInfo(self._offsets[at.partition], -1, -1))
        return answers


@pytest.mark.parametrize("ask", [earliest_offsets, last_stable_offsets])
def test_an_offset_that_nobody_named_is_no_answer(ask: Any) -> None:
    admin = FakeAdmin({0: 7, 1: OFFSET_INVALID})
    assert ask(admin, [("topic", 0), ("topic", 1)]) == {("topic", 0): 7}
    with pytest.raises(KafkaException, match="named no offset"):
        ask(admin, [("topic", 1)])
    assert admin.looks == 2, "who leads was asked again, each time"
