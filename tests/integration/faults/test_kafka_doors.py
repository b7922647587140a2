"""Clients of a real broker behind a proxy, and in a namespace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from statehouse.kafka import clients
from statehouse.local.ports import free_port
from tests.support.fault_proxy import BOTH, FaultProxy
from tests.support.kafka import create_topic, produce, read_all
from tests.support.kafka_doors import Door, KafkaWithDoors
from tests.support.netns import Network
from tests.support.polling import poll_until

READ = (
    "import sys; from tests.support.kafka import read_all\n"
    "print(read_all(sys.argv[1], 'topic')[0][1].decode(), end='')\n"
)


def test_clients_go_on_at_the_door_they_came_by(tmp_path: Path) -> None:
    with Network() as network:
        proxied, outside = Door(advertised_port=free_port()), Door(network.host)
        with (
            KafkaWithDoors(tmp_path / "broker", doors={"proxied": proxied, "outside": outside}) as kafka,
            FaultProxy(proxied.port, port=proxied.advertised_port) as proxy,
        ):
            create_topic(kafka.bootstrap, "topic")
            produce(proxied.bootstrap, "topic", [(b"k", b"v")])
            assert read_all(kafka.bootstrap, "topic") == [(b"k", b"v")]

            namespace = network.namespace()
            command = [*namespace.prefix, sys.executable, "-c", READ, outside.bootstrap]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert done.stdout == "v", done.stderr

            admin = AdminClient({"bootstrap.servers": proxied.bootstrap, "log_level": 0})
            assert is_answered(admin)
            proxy.stall(*BOTH)
            assert not is_answered(admin), "nothing goes past the proxy"
            assert is_answered(AdminClient({"bootstrap.servers": kafka.bootstrap}))
            proxy.heal()
            poll_until(lambda: is_answered(admin), 30, "an answer after healing")


def test_our_clients_give_up_a_dead_connection(tmp_path: Path) -> None:
    door = Door(advertised_port=free_port())
    with (
        KafkaWithDoors(tmp_path / "broker", doors={"proxied": door}) as kafka,
        FaultProxy(door.port, port=door.advertised_port) as proxy,
    ):
        create_topic(kafka.bootstrap, "topic")
        consumer = clients.consumer(door.bootstrap, "test")
        consumer.assign([TopicPartition("topic", 0, 0)])
        try:
            poll_until(lambda: consumer.poll(0.1), 30, "the end of the topic")
            proxy.blackhole(*BOTH)  # nobody is told
            known = proxy.accepted

            def has_connected_anew() -> bool:
                consumer.poll(0.1)
                return proxy.accepted > known

            poll_until(has_connected_anew, 30, "another connection")
        finally:
            consumer.close()


def is_answered(admin: AdminClient) -> bool:
    try:
        admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    return True
