"""The embedded broker as a real one: transactions, restarts, crashes, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from statehouse.local.errors import BrokerDied, LocalError, PortTaken
from statehouse.local.kafka import EmbeddedKafka
from tests.support.kafka import DEADLINE_S, create_topic, produce, read_all
from tests.support.polling import poll_until

Namer = Callable[[str], str]


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_records_come_back(kafka: EmbeddedKafka, unique_name: Namer) -> None:
    topic = unique_name("topic")
    create_topic(kafka.bootstrap, topic, partitions=2)
    produce(kafka.bootstrap, topic, [(b"a", b"1"), (b"b", None)])
    produce(kafka.bootstrap, topic, [(b"c", b"3")], partition=1)
    assert read_all(kafka.bootstrap, topic) == [(b"a", b"1"), (b"b", None)]
    assert sorted(read_all(kafka.bootstrap, topic, (0, 1))) == [(b"a", b"1"), (b"b", None), (b"c", b"3")]


def test_transactions_show_what_was_committed(kafka: EmbeddedKafka, unique_name: Namer) -> None:
    topic = unique_name("topic")
    create_topic(kafka.bootstrap, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": unique_name("writer")})
    producer.init_transactions(DEADLINE_S)
    for value, end in ((b"kept", producer.commit_transaction), (b"dropped", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, key=b"k", value=value)
        assert producer.flush(DEADLINE_S) == 0
        end(DEADLINE_S)
    assert read_all(kafka.bootstrap, topic) == [(b"k", b"kept")]
    assert read_all(kafka.bootstrap, topic, committed=False) == [(b"k", b"kept"), (b"k", b"dropped")]


def test_offsets_commit_with_a_transaction_and_a_second_writer_fences_the_first(
    kafka: EmbeddedKafka, unique_name: Namer
) -> None:
    topic, group, writer = unique_name("topic"), unique_name("group"), unique_name("writer")
    create_topic(kafka.bootstrap, topic)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    first, second = (Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": writer}) for _ in range(2))
    try:
        first.init_transactions(DEADLINE_S)
        first.begin_transaction()
        first.produce(topic, key=b"k", value=b"v")
        marker = [TopicPartition(topic, 0, 8)]
        first.send_offsets_to_transaction(marker, consumer.consumer_group_metadata(), DEADLINE_S)
        first.commit_transaction(DEADLINE_S)
        assert consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)[0].offset == 8

        second.init_transactions(DEADLINE_S)
        first.begin_transaction()
        first.produce(topic, key=b"k", value=b"late")
        with pytest.raises(KafkaException) as caught:
            first.commit_transaction(DEADLINE_S)
        first.purge()
        assert caught.value.args[0].code() in {KafkaError._FENCED, KafkaError.PRODUCER_FENCED}
    finally:
        consumer.close()
    assert read_all(kafka.bootstrap, topic) == [(b"k", b"v")]


def test_a_mistyped_topic_is_not_created(kafka: EmbeddedKafka, unique_name: Namer) -> None:
    topic = unique_name("typo")
    failures: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "topic.metadata.propagation.max.ms": 100})
    producer.produce(topic, value=b"v", on_delivery=lambda error, _message: failures.append(error))
    assert producer.flush(DEADLINE_S) == 0
    (failure,) = failures
    assert failure is not None
    assert failure.code() in {KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART}
    assert topic not in producer.list_topics(timeout=DEADLINE_S).topics


def test_a_second_broker_can_not_take_the_port(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=str(kafka.port)):
        EmbeddedKafka(tmp_path, kafka.port).start()


def test_a_running_broker_is_not_started_twice(kafka: EmbeddedKafka) -> None:
    with pytest.raises(LocalError, match=f"already running .pid {kafka.pid}"):
        kafka.start()


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_broker(kafka: EmbeddedKafka) -> None:
    assert os.getsid(kafka.pid) == kafka.pid != os.getsid(0)


@pytest.mark.long
def test_data_and_address_survive_a_restart_and_a_crash(
    tmp_path: Path, unique_name: Namer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = unique_name("topic")
    monkeypatch.setenv("LC_ALL", "POSIX")
    # A directory that class paths, properties files and shells would stumble over, were it passed to them.
    with EmbeddedKafka(tmp_path / "a dir, Zoë €", config={"log.retention.check.interval.ms": "12345"}) as broker:
        bootstrap = broker.bootstrap
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        config = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        assert config["log.retention.check.interval.ms"].value == "12345"

        create_topic(bootstrap, topic)
        produce(bootstrap, topic, [(b"k", b"before the restart")])
        broker.stop()
        assert not broker.is_running
        broker.start()
        assert broker.bootstrap == bootstrap
        produce(bootstrap, topic, [(b"k", b"before the crash")])
        broker.kill()
        broker.start()
        assert read_all(bootstrap, topic) == [(b"k", b"before the restart"), (b"k", b"before the crash")]
        pid = broker.pid
    assert has_ended(pid)
    assert broker.log_path.stat().st_size > 0


def test_a_broker_whose_process_ends_tells_so_and_its_temporary_directory_goes() -> None:
    with EmbeddedKafka() as broker:
        data_dir = broker.data_dir
        assert data_dir.is_dir()
        os.kill(broker.pid, signal.SIGKILL)
        with pytest.raises(BrokerDied) as caught:
            broker.wait()
        assert f"exit code {-signal.SIGKILL:d}" in str(caught.value)
        assert broker.log_path.read_text().splitlines()[-1].strip() in str(caught.value)
        assert not broker.is_running
    assert not data_dir.exists()


@pytest.mark.long
def test_an_exception_in_the_owner_leaves_no_broker_behind() -> None:
    program = (
        "from statehouse.local.kafka import EmbeddedKafka\n"
        "broker = EmbeddedKafka().start()\n"
        "print(broker.pid, broker.data_dir, flush=True)\n"
        "raise RuntimeError('something else went wrong')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    pid, data_dir = done.stdout.split(maxsplit=1)
    assert has_ended(int(pid))
    assert not Path(data_dir.strip()).exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_program_runs_until_a_signal(tmp_path: Path, ending: signal.Signals) -> None:
    ready_file = tmp_path / "ready"
    command = [sys.executable, "-m", "statehouse.local.kafka", "--data-dir", str(tmp_path / "d")]
    process = subprocess.Popen([*command, "--ready-file", str(ready_file)], stdout=subprocess.PIPE, text=True)
    try:
        poll_until(lambda: ready_file.exists() or process.poll() is not None, 2 * DEADLINE_S, "the ready file")
        bootstrap = ready_file.read_text().strip()
        assert AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=DEADLINE_S).brokers
        process.send_signal(ending)
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 0
    (line,) = output.splitlines()
    assert line.startswith(f"kafka is ready on {bootstrap} (pid ")
    assert has_ended(int(line.split("(pid ")[1].split(",")[0]))
    assert not ready_file.exists()
