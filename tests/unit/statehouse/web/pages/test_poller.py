"""What asks the fleet goes on, whatever an answer leads to."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from statehouse.local.certificates import make_certificates
from statehouse.settings import WebSettings
from statehouse.web.pages import poller
from statehouse.web.pages.poller import Poller


async def test_a_defect_is_told_and_the_fleet_asked_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(poller, "PAUSE_MAX_S", 0.0)
    answers, is_asked_again = [ValueError("an answer that was not thought of")], asyncio.Event()

    async def ask() -> float:
        if answers:
            raise answers.pop()
        is_asked_again.set()
        return 0.0

    with capture_logs() as lines:
        asking = asyncio.create_task(Poller._paced(ask, 0.0))
        async with asyncio.timeout(20):
            await asyncio.wait({asking, asyncio.ensure_future(is_asked_again.wait())}, return_when="FIRST_COMPLETED")
        asking.cancel()
    assert is_asked_again.is_set()
    assert [line["log_level"] for line in lines] == ["error"]


def test_files_of_the_own_folder_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    make_certificates(tmp_path / "tls")
    monkeypatch.setenv("HOME", str(tmp_path))
    files = {"tls_ca": "ca.pem", "tls_certificate": "router.pem", "tls_key": "router.key"}
    settings = WebSettings(router="localhost:7100", **{name: Path("~/tls") / file for name, file in files.items()})
    assert poller._context(settings).cert_store_stats()["x509_ca"] == 1
