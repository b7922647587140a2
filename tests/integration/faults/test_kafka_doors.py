"""Clients of a real broker behind a proxy, and in a namespace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from statehouse.kafka import clients
from statehouse.local.ports import free_port
from tests.support.fault_proxy import BOTH, FaultProxy
from tests.support.kafka import create_topic, produce, read_all
from tests.support.kafka_doors import Door, KafkaWithDoors
from tests.support.netns import Network
from tests.support.polling import poll_until

READ = "import sys; from tests.support.kafka import read_all\nprint(read_all(*sys.argv[1:])[0][1].decode(), end='')\n"


@dataclass(frozen=True, slots=True)
class Reached:
    """A broker that is reached through a proxy, and from a network of namespaces."""

    kafka: KafkaWithDoors
    proxied: Door
    outside: Door
    network: Network

    def proxy(self) -> FaultProxy:
        return FaultProxy(self.proxied.port, port=self.proxied.advertised_port)


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reached]:
    with Network() as network:
        proxied, outside = Door(advertised_port=free_port()), Door(network.host)
        directory = tmp_path_factory.mktemp("doors")
        with KafkaWithDoors(directory / "broker", doors={"proxied": proxied, "outside": outside}) as kafka:
            yield Reached(kafka, proxied, outside, network)


@pytest.fixture
def topic(reached: Reached, unique_name: Callable[[str], str]) -> str:
    name = unique_name("topic")
    create_topic(reached.kafka.bootstrap, name)
    return name


@pytest.mark.long
def test_clients_go_on_at_the_door_they_came_by(reached: Reached, topic: str) -> None:
    kafka, proxied = reached.kafka, reached.proxied
    with reached.proxy() as proxy:
        produce(proxied.bootstrap, topic, [(b"k", b"v")])
        assert read_all(kafka.bootstrap, topic) == [(b"k", b"v")]

        namespace = reached.network.namespace()
        command = [*namespace.prefix, sys.executable, "-c", READ, reached.outside.bootstrap, topic]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "v", done.stderr

        admin = AdminClient({"bootstrap.servers": proxied.bootstrap, "log_level": 0})
        poll_until(lambda: is_answered(admin), 30, "an answer")
        proxy.stall(*BOTH)
        assert not is_answered(admin), "nothing goes past the proxy"
        past = AdminClient({"bootstrap.servers": kafka.bootstrap})
        poll_until(lambda: is_answered(past), 30, "an answer past the proxy")
        proxy.heal()
        poll_until(lambda: is_answered(admin), 30, "an answer after healing")


def test_our_clients_give_up_a_dead_connection(reached: Reached, topic: str) -> None:
    with reached.proxy() as proxy:
        consumer = clients.consumer(reached.proxied.bootstrap, "test")
        consumer.assign([TopicPartition(topic, 0, 0)])
        try:
            poll_until(lambda: consumer.poll(0.1), 30, "the end of the topic")
            proxy.blackhole(*BOTH)  # neither end learns of it
            known = proxy.accepted

            def has_connected_anew() -> bool:
                consumer.poll(0.1)
                return proxy.accepted > known

            poll_until(has_connected_anew, 60, "another connection")
        finally:
            consumer.close()


def is_answered(admin: AdminClient) -> bool:
    try:
        admin.list_topics(timeout=1.0)
    except KafkaException:
        return False
    return True
