"""The broker's failures, each made by a `java` that fails in that way."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from statehouse.local.errors import BrokerDied, BrokerNotReady, JavaNotFound, LocalError, PortTaken
from statehouse.local.kafka import EmbeddedKafka, main
from statehouse.local.ports import LOOPBACK
from tests.support.fake_java import RESOLVES, write_fake_java

_FORMATS = """
case "$*" in *StorageTool*) printf 'version=1\\ncluster.id=a-cluster\\n' > data/meta.properties; exit 0;; esac
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "java"
    monkeypatch.setenv("JAVA_HOME", str(path))
    monkeypatch.setenv("STATEHOUSE_CACHE_DIR", str(tmp_path / "cache"))
    return path


def test_a_broker_that_dies_at_start_is_quoted(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES + _FORMATS + "echo 'FATAL the disk is on fire'; exit 3")
    broker = EmbeddedKafka(tmp_path / "broker")
    with pytest.raises(BrokerDied, match="the disk is on fire") as caught:
        broker.start()
    assert "ended with exit code 3" in str(caught.value)
    assert f"in {tmp_path / 'broker' / 'broker.log'}" in str(caught.value)
    assert not broker.is_running


def test_a_data_directory_that_can_not_be_prepared_is_quoted(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES + "echo 'No space left'; exit 1")
    with pytest.raises(
        BrokerDied, match=r"preparing the broker's data directory ended with exit code 1(.|\n)*No space"
    ):
        EmbeddedKafka(tmp_path / "broker").start()


def test_a_broker_that_never_answers_is_stopped(home: Path, tmp_path: Path) -> None:
    write_fake_java(home, body=RESOLVES + _FORMATS + "echo still loading; exec tail -f /dev/null")
    broker = EmbeddedKafka(tmp_path / "broker", ready_timeout_s=0.5)
    with pytest.raises(BrokerNotReady, match=r"within 0\.5 s(.|\n)*still loading"):
        broker.start()
    assert not broker.is_running


def test_a_taken_port_is_told_before_anything_is_fetched(home: Path, tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken, match=f"port {port} .* --port"):
            EmbeddedKafka(tmp_path / "broker", port).start()
    assert not (tmp_path / "cache").exists()


def test_no_java(home: Path, tmp_path: Path) -> None:
    with pytest.raises(JavaNotFound):
        EmbeddedKafka(tmp_path / "broker").start()


def test_settings_of_the_node_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log\.dirs"):
        EmbeddedKafka(tmp_path, config={"log.dirs": "elsewhere"})


def test_a_broker_not_started_has_no_address_and_stops_quietly() -> None:
    broker = EmbeddedKafka()
    for ask in (lambda: broker.bootstrap, lambda: broker.pid, lambda: broker.data_dir, broker.wait):
        with pytest.raises(LocalError, match=r"start\(\)"):
            ask()
    broker.stop()
    broker.kill()


def test_a_temporary_directory_is_kept_for_its_log_until_stop(home: Path) -> None:
    write_fake_java(home, body=RESOLVES + "exit 1")
    broker = EmbeddedKafka()
    with pytest.raises(BrokerDied):
        broker.start()
    kept = broker.log_path
    assert kept.exists()
    broker.stop()
    assert not kept.parent.exists()


def test_the_program_says_what_is_wrong_without_a_traceback(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert capsys.readouterr().err.startswith("error: no Java runtime found")


def test_the_program_refuses_a_setting_without_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--config", "num.partitions"])
    assert "'num.partitions' is not KEY=VALUE" in capsys.readouterr().err
