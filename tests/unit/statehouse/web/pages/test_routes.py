"""Pages asked for over HTTP, by callers that rules know: what is refused, and what is shown."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from statehouse.security.gate import Gate
from statehouse.settings import WebSettings
from statehouse.web.gateway import Gateway
from statehouse.web.pages.routes import Pages
from tests.support.fake_router import fake_router
from tests.unit.statehouse.web.pages.fleets import at, fleet, reading, replica, store


def identity(name: str, more: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f'[[identity]]\nname = "{name}"\ntoken_sha256 = ["{digest}"]\n{more}\n'


RULES = "".join(
    (
        identity("reader", 'roles = ["reader"]\nstores = ["boards"]'),
        identity("lister", 'roles = ["reader"]\nstores = ["boards"]\nalso = ["fleet"]'),
        identity("everything", 'roles = ["reader"]\nstores = ["*"]'),
        identity("health", 'roles = ["health"]'),
    )
)


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Ask the pages of a fleet with the stores boards and secret."""
    (tmp_path / "rules.toml").write_text(RULES)
    with fake_router() as router:
        router.values = {"alice": b"1"}
        gateway = Gateway(WebSettings(router=router.target, http_port=0))
        gateway._gate = Gate(
            tmp_path / "rules.toml", None, None, on_denied=lambda _reason: None, on_unusable=lambda: None
        )
        pages = Pages(gateway)
        pages.recorder.take_fleet(fleet(epoch=77, stores=(store("boards", newest_batch=42), store("secret"))), at(0))
        pages.recorder.take_node(reading("n1", 0.0, replica(store="boards", oldest_batch=17)))
        transport = httpx.ASGITransport(Starlette(routes=pages.routes()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
        await gateway.close()


def by(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_who_may_not_list_the_stores_is_offered_only_the_one_asked_about(web: httpx.AsyncClient):
    asked = {"store": "boards", "key": "alice"}
    for path in ("/lookup", "/lookup.json"):
        told = await web.get(path, params=asked, headers=by("reader"))
        assert told.status_code == 200
        assert "boards" in told.text
        assert "secret" not in told.text
        assert "secret" in (await web.get(path, params=asked, headers=by("lister"))).text


async def test_a_store_s_page_shows_the_oldest_kept_batch_beside_the_newest(web: httpx.AsyncClient):
    told = await web.get("/stores/boards", headers=by("reader"))
    assert "moments: newest batch 42, oldest kept 17" in told.text
    assert (await web.get("/stores/boards.json", headers=by("reader"))).json()["page"]["oldest_batch"] == 17


async def test_a_form_that_can_not_be_read_tells_nobody_of_the_fleet_who_may_not_ask(web: httpx.AsyncClient):
    wrong = {"store": "boards", "key": "alice", "max_lag": "x"}
    for headers, status in ({}, 401), (by("health"), 403):
        refused = await web.get("/lookup", params=wrong, headers=headers)
        assert (refused.status_code, "77" in refused.text) == (status, False)
    told = await web.get("/lookup", params=wrong, headers=by("reader"))
    assert (told.status_code, "max_lag must be a whole number" in told.text) == (400, True)


async def test_a_watch_of_what_can_not_be_a_prefix_is_refused_before_its_stream_begins(web: httpx.AsyncClient):
    for query in ("prefix=a&prefix=b", f"prefix={'a' * 4_001}"):
        refused = await web.get(f"/live/stores/boards/watch?{query}", headers=by("reader"))
        assert (refused.status_code, refused.json()["reason"]) == (400, "INVALID_REQUEST")


async def test_who_may_not_read_a_store_is_not_told_whether_it_exists(web: httpx.AsyncClient):
    for path in ("/stores/{}", "/stores/{}.json", "/live/stores/{}/watch"):
        for name in ("reader", "lister", "health"):
            known, unknown = [await web.get(path.format(each), headers=by(name)) for each in ("secret", "nowhere")]
            assert known.status_code == unknown.status_code == 403
            assert known.text.replace("secret", "nowhere") == unknown.text


async def test_a_store_that_does_not_exist_is_unknown_to_whoever_might_read_it(web: httpx.AsyncClient):
    for path in ("/stores/nowhere", "/stores/nowhere.json", "/live/stores/nowhere/watch"):
        assert (await web.get(path, headers=by("everything"))).status_code == 404
