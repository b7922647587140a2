"""What a process says at its start of ports that are open."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from statehouse.observability.denials import SecurityMetrics, counted_gate, say_if_open
from statehouse.settings import RouterSettings, WebSettings
from tests.support.certificates import Authority


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "10.1.2.3", "box.example", "127.0.0.1.example"])
def test_ports_that_are_open_beyond_the_machine_are_told_of_once(host: str):
    with capture_logs() as logged:
        counted_gate(RouterSettings(application_id="a", bind_host=host), SecurityMetrics(CollectorRegistry(), "t"))
    (line,) = logged
    assert (line["log_level"], line["bind_host"]) == ("warning", host)
    assert "tls_certificate" in line["event"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_ports_of_the_machine_itself_are_not(host: str):
    with capture_logs() as logged:
        say_if_open(WebSettings(bind_host=host))
    assert logged == []


def test_ports_with_tls_are_not(tmp_path: Path):
    mine = Authority(tmp_path, "house").issue(("localhost",))
    files = {"tls_certificate": mine.certificate_path, "tls_key": mine.key_path}
    with capture_logs() as logged:
        say_if_open(WebSettings(bind_host="0.0.0.0", **files))
    assert logged == []
