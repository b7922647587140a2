"""The client's page: each program in it runs, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from statehouse.local.certificates import make_certificates
from tests.support.fake_router import fake_router

_PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", _PAGE, re.DOTALL)


def test_all_programs_say_what_they_print() -> None:
    assert len(PROGRAMS) == _PAGE.count("```python") > 0


@pytest.mark.feature("python-client-sync")
@pytest.mark.parametrize(("program", "printed"), PROGRAMS)
def test_programs_print_what_the_page_says(
    program: str, printed: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = None
    if "ClientTls" in program:
        make_certificates(tmp_path)
        monkeypatch.chdir(tmp_path)
        pair = (Path("router.key").read_bytes(), Path("router.pem").read_bytes())
        credentials = grpc.ssl_server_credentials([pair], Path("ca.pem").read_bytes(), require_client_auth=True)
    with fake_router(credentials) as router:
        router.values = {"1": [{"score": 4000}], "6": {"score": 12.5}}
        assert "127.0.0.1:7100" in program
        exec(program.replace("127.0.0.1:7100", router.target), {"__name__": "program"})  # noqa: S102 - our own page
    assert capsys.readouterr().out == printed
