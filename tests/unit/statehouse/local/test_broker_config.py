from __future__ import annotations

import pytest

from statehouse.local.broker_config import OWNED_KEYS, check_overrides, properties_text, server_properties


def test_internal_topics_suit_one_broker() -> None:
    properties = server_properties(1, 2, {})
    for key in (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "transaction.state.log.min.isr",
    ):
        assert properties[key] == "1"
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["group.initial.rebalance.delay.ms"] == "0"


def test_overrides_win() -> None:
    overrides = {"num.partitions": "6", "log.retention.check.interval.ms": "1000"}
    assert server_properties(1, 2, overrides).items() >= overrides.items()


@pytest.mark.parametrize("key", sorted(OWNED_KEYS))
def test_what_defines_the_node_can_not_be_overridden(key: str) -> None:
    with pytest.raises(ValueError, match=key):
        check_overrides({"num.partitions": "6", key: "x"})


def test_both_listeners_are_on_the_loopback_address() -> None:
    properties = server_properties(9092, 9093, {})
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:9093"


def test_properties_are_escaped() -> None:
    assert properties_text({"a": "b\\c", "d": " e", "f": "g\nh"}) == "a=b\\\\c\nd=\\ e\nf=g\\nh\n"
