"""What a router's web process is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.child_processes import environment_of
from router.web import web_child, web_settings
from router.workers import settings_of_worker
from statehouse.errors import ConfigurationError
from statehouse.settings import RouterSettings, WebSettings, load
from tests.support.certificates import Authority


@pytest.mark.feature("router-starts-web")
def test_it_has_the_routers_settings_and_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    router = RouterSettings(application_id="app", http_port=7_300, http_allowed_hosts="board.house", express=False)
    settings = web_settings(router, 7_101)

    assert (settings.router, settings.http_port, settings.http_allowed_hosts) == (
        "127.0.0.1:7101",
        7_300,
        "board.house",
    )
    for name, value in environment_of(settings, {}).items():
        monkeypatch.setenv(name, value)
    assert load(WebSettings, {}) == settings


@pytest.mark.parametrize(
    ("bind", "target"),
    [("0.0.0.0", "127.0.0.1:7100"), ("[::]", "[::1]:7100"), ("10.0.0.5", "10.0.0.5:7100"), ("box", "box:7100")],
)
def test_it_asks_the_router_where_that_listens(bind: str, target: str) -> None:
    assert web_settings(RouterSettings(application_id="app", bind_host=bind), 7_100).router == target


@pytest.mark.parametrize(
    ("hosts", "name"),
    [(("board.house", "127.0.0.1"), ""), (("board.house",), "board.house"), (("10.0.0.5",), "10.0.0.5")],
)
def test_it_checks_a_name_that_the_routers_certificate_has(tmp_path: Path, hosts: tuple[str, ...], name: str) -> None:
    issued = Authority(tmp_path, "house").issue(hosts, ())
    router = RouterSettings(application_id="app", tls_certificate=issued.certificate_path, tls_key=issued.key_path)

    assert web_settings(router, 7_100).tls_router_name == name


@pytest.mark.parametrize(
    ("port", "workers", "metrics"),
    [(None, 2, ""), (0, 1, ""), (9_100, 1, "127.0.0.1:9100"), (9_100, 2, "127.0.0.1:9100,127.0.0.1:9101")],
)
def test_it_knows_where_each_worker_serves_its_metrics(port: int | None, workers: int, metrics: str) -> None:
    router = RouterSettings(application_id="app", metrics_port=port, workers=workers)
    assert web_settings(router, 7_100).router_metrics == metrics


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("rubbish")
    router = RouterSettings(application_id="app", tls_certificate=wrong, tls_key=wrong)

    with pytest.raises(ConfigurationError, match=r"wrong\.pem"):
        web_settings(router, 7_100)


def test_workers_start_no_further_ones() -> None:
    router = RouterSettings(application_id="app", http_port=7_300, workers=2)

    assert settings_of_worker(router, 0, 7_100).http_port is None
    assert not web_child(router, 7_100).needed
