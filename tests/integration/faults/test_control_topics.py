"""A control topic that is deleted and created anew while it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from statehouse.kafka import control_log
from statehouse.kafka.control_log import ControlLogReader
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import create_topic, produce
from tests.support.polling import poll_until


@pytest.mark.parametrize("count", [2, 8], ids=["its end is before the old one", "and beyond it"])
def test_a_recreated_topic_is_read_from_its_beginning(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(control_log, "_ASK_ID_S", 0.5)
    topic = unique_name("control")
    create_topic(kafka.bootstrap, topic)
    produce(kafka.bootstrap, topic, [(b"k", b"old %d" % number) for number in range(5)])
    heard: list[bytes | None] = []
    contacts: list[int] = []
    defects: list[Exception] = []
    reader = ControlLogReader(
        kafka.bootstrap,
        topic,
        lambda _key, value, _time: heard.append(value),
        client_id="test",
        on_broken=defects.append,
        on_contact=lambda: contacts.append(len(heard)),
    )
    reader.start()
    poll_until(lambda: contacts and contacts[-1] == 5, 20, "the first topic is read")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    poll_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30, "the deletion")
    create_topic(kafka.bootstrap, topic)
    following = [b"new %d" % number for number in range(count)]
    produce(kafka.bootstrap, topic, [(b"k", value) for value in following])
    poll_until(lambda: heard[-count:] == following, 30, "all of the new topic")
    known = len(contacts)
    poll_until(lambda: len(contacts) > known, 20, "contact")
    reader.stop()
    assert not defects
