"""What docs/client-in-web-servers.md shows runs, with real gunicorn."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from statehouse.local.ports import free_port
from tests.support.fake_router import FakeRouter, fake_router
from tests.support.pages import blocks
from tests.support.polling import poll_until

PAGE = (Path(__file__).parents[2] / "docs" / "client-in-web-servers.md").read_text()
BOARDS, EARLY, BOARDS_ASYNC, POOL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
(GUNICORN, *_), (UVICORN, *_) = (block.commands for block in blocks(PAGE))


@pytest.fixture(scope="module")
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {"1": [{"score": 4000}], "6": {"score": 12.5}}
        yield running


@contextmanager
def served(command: str, folder: Path, router: FakeRouter, *options: str, status: int = 200) -> Iterator[httpx.Client]:
    """Run a server's command on a free port, and wait until it answers so."""
    port = str(free_port())
    words = [word.replace("8000", port) for word in command.split()]
    environment = {**os.environ, "STATEHOUSE_ROUTER": router.target}
    started = subprocess.Popen(
        [sys.executable, "-m", *words[:1], *options, *words[1:]], cwd=folder, env=environment, stderr=subprocess.STDOUT
    )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
            poll_until(lambda: answers(client, status), 20, f"{words[0]} answers {status}")
            yield client
    finally:
        started.terminate()
        assert started.wait(20) is not None


def answers(client: httpx.Client, status: int) -> bool:
    try:
        return client.get("/1").status_code == status
    except httpx.TransportError:
        return False


def asked(client: httpx.Client, paths: Sequence[str]) -> list[tuple[int, object]]:
    """Ask on a new connection each, so that all workers have their turn."""

    def ask(path: str) -> tuple[int, object]:
        response = client.get(path, headers={"Connection": "close"})
        return response.status_code, response.json()

    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(ask, paths))


@pytest.mark.parametrize(
    ("options", "early"),
    [((), ""), (("--threads", "4"), EARLY)],
    ids=["a thread each", "threads, and a lookup before the fork"],
)
def test_gunicorn_with_a_program_that_is_loaded_before_the_fork(
    router: FakeRouter, tmp_path: Path, options: tuple[str, ...], early: str
):
    (tmp_path / "boards.py").write_text(BOARDS + early)
    with served(GUNICORN.line, tmp_path, router, *options) as client:
        assert (
            asked(client, ["/1", "/6", "/nobody"] * 8)
            == [
                (200, [{"score": 4000}]),
                (200, {"score": 12.5}),
                (404, None),
            ]
            * 8
        )


def test_gunicorn_with_a_client_that_was_in_use_before_the_fork_says_so(router: FakeRouter, tmp_path: Path):
    (tmp_path / "boards.py").write_text(
        BOARDS.replace("LookupFailure as", "Exception as") + 'client.get("boards", "1")\n'
    )
    with served(GUNICORN.line, tmp_path, router, status=503) as client:
        assert "this process was forked from process" in client.get("/1").text


def test_uvicorn(router: FakeRouter, tmp_path: Path):
    (tmp_path / "boards_async.py").write_text(BOARDS_ASYNC)
    with served(UVICORN.line, tmp_path, router) as client:
        assert asked(client, ["/1", "/nobody"] * 4) == [(200, [{"score": 4000}]), (404, None)] * 4


def test_a_pool(router: FakeRouter, tmp_path: Path):
    (tmp_path / "pool.py").write_text(POOL)
    environment = {**os.environ, "STATEHOUSE_ROUTER": router.target}
    ended = subprocess.run(
        [sys.executable, "pool.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    printed = re.search(r"```\n(\[\[.*?)```", PAGE, re.DOTALL)
    assert printed is not None
    assert ast.literal_eval(ended.stdout) == ast.literal_eval(printed[1])
