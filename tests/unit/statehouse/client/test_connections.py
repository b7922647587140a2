"""Where a client may be used, and what else programs do with clients, answers and failures."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from datetime import timedelta
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from statehouse.client import AsyncClient, Client, ClientTls, Freshness, Lookup
from statehouse.errors import ConfigurationError, LookupFailure, Reason, StatehouseError, UsageError
from statehouse.serdes import SerdeUnavailable
from statehouse.settings.declaration import InvalidSettings
from statehouse.v1 import errors_pb2
from tests.support.fake_router import UNREACHABLE, FakeRouter, fake_router
from tests.support.polling import poll_until


@pytest.fixture(scope="module")
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {"1": 7, "2": {"score": 12.5}}
        yield running


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes


def test_an_async_client_made_without_a_loop_works_on_each_one_after_the_other(router: FakeRouter):
    client = AsyncClient(router.target)
    session = client.session()

    async def read() -> tuple[Any, Any]:
        return (await client.get("boards", "1")).value, (await session.get("boards", "1")).value

    assert asyncio.run(read()) == (7, 7)
    assert asyncio.run(read()) == (7, 7)
    assert session.token


def test_an_async_client_says_so_on_a_second_loop_beside_the_first(router: FakeRouter):
    client = AsyncClient(router.target)
    in_use, done = threading.Event(), threading.Event()

    async def use() -> None:
        async with client:
            await client.get("boards", "1")
            in_use.set()
            await asyncio.to_thread(done.wait)
            assert (await client.get("boards", "1")).value == 7

    async def read() -> None:
        await client.get("boards", "1")

    other = threading.Thread(target=asyncio.run, args=(use(),))
    other.start()
    assert in_use.wait(10)
    for use_here in (read, client.close):
        with pytest.raises(UsageError, match="another event loop"):
            asyncio.run(use_here())
    done.set()
    other.join()
    with pytest.raises(LookupFailure, match="closed"):
        asyncio.run(read())


def test_an_async_client_without_a_loop_says_what_to_use(router: FakeRouter):
    with pytest.raises(UsageError, match="or use Client"):
        AsyncClient(router.target).watch("boards", "1")


def test_what_cannot_work_is_refused_when_a_client_is_made():
    for make in (Client, AsyncClient):
        with pytest.raises(ConfigurationError, match="names no router"):
            make(" , ")
        with pytest.raises(ConfigurationError, match="can't read"):
            make(
                tls=ClientTls.from_texts(
                    {"ca": "/nowhere", "certificate": "", "key": "", "token": "", "server_name": ""}
                )
            )
        with pytest.raises(TypeError, match="number of seconds"):
            make(timeout="5")  # type: ignore[arg-type] # what it is about


def test_a_closed_client_cannot_be_entered_again(router: FakeRouter):
    with Client(router.target) as client, client:
        assert client.get("boards", "1").value == 7
    client.close()
    with pytest.raises(LookupFailure, match="the client was closed"):
        client.__enter__()
    with pytest.raises(LookupFailure, match="the client was closed"):
        client.get("boards", "1")

    async def again() -> None:
        unused = AsyncClient(router.target)
        await unused.close()
        await unused.close()
        with pytest.raises(LookupFailure, match="the client was closed"):
            await unused.__aenter__()

    asyncio.run(again())


def test_a_client_that_is_not_used_starts_nothing():
    before = threading.active_count()
    clients = [Client("127.0.0.1:1") for _ in range(10)]
    assert threading.active_count() == before
    for client in clients:
        client.close()


def test_what_nobody_refers_to_is_closed(router: FakeRouter):
    def threads() -> list[str]:
        return [each.name for each in threading.enumerate() if each.name == f"statehouse-client-{router.target}"]

    for _ in range(3):
        assert Client(router.target).get("boards", "1").value == 7
    session = Client(router.target).session()
    entries = Client(router.target).scan("boards")
    assert next(entries).key == "1"
    gc.collect()
    assert session.get("boards", "1").value == 7
    assert [each.key for each in entries] == ["2"]
    del session, entries
    poll_until(lambda: not threads(), 20, "the threads to end")


def test_a_client_can_be_pickled_and_copied(router: FakeRouter):
    with Client(router.target, timeout=2, direct=False) as client:
        assert client.get("boards", "1").value == 7
        for another in (pickled(client), copy.copy(client), copy.deepcopy(client)):
            with another:
                assert another.get("boards", "1").value == 7
                assert (another.target, another._client.settings) == (client.target, client._client.settings)
        assert repr(client) == f"Client({router.target!r})"
        session = client.session()
        session.get("boards", "1")
        assert repr(session) == f"ReadSession({router.target!r}, token={str(session.token)!r})"
        with pytest.raises(TypeError, match="token"):
            pickle.dumps(client.session())
    assert pickled(AsyncClient("a:1")).target == "a:1"
    assert repr(AsyncClient("a:1")) == "AsyncClient('a:1')"
    assert repr(AsyncClient("a:1").session()) == "AsyncReadSession('a:1', token='')"


def test_results_can_be_pickled_copied_and_compared(router: FakeRouter):
    with Client(router.target) as client:
        results: list[Any] = [
            client.get("boards", "2"),
            client.stores(),
            client.fleet(),
            client.locate("boards", "1"),
            *client.scan("boards"),
            *client.pages("boards"),
            client.count("boards"),
            client.get("boards", "1").token,
            Lookup("boards", "1", Freshness(max_lag=1)),
        ]
    for result in results:
        assert pickled(result) == result
        assert copy.deepcopy(result) == result
        assert type(result).__name__ in repr(result) or isinstance(result, tuple)


@pytest.mark.parametrize(
    "error",
    [
        LookupFailure(
            Reason.NO_REPLICA_AVAILABLE,
            "nobody",
            {"store": "boards"},
            route=errors_pb2.Route(epoch=5),
            candidates=[UNREACHABLE],
        ),
        SerdeUnavailable("no schema"),
        ConfigurationError("no"),
        UsageError("not here"),
        InvalidSettings(["too large"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_can_be_pickled_and_copied(error: StatehouseError):
    error.add_note("noted")
    for same in (pickled(error), copy.copy(error), copy.deepcopy(error)):
        assert type(same) is type(error)
        assert (str(same), repr(same), same.args) == (str(error), repr(error), error.args)
        assert vars(same) == vars(error)


def test_a_failure_shows_its_reason():
    assert repr(LookupFailure(Reason.UNREACHABLE, "gone")) == "LookupFailure(UNREACHABLE, 'gone')"


@pytest.mark.parametrize(
    "timeout", [float("inf"), 1e30, pytest.param(10**400, id="huge"), np.float32(5), np.int64(5), Fraction(5), 5]
)
def test_a_timeout_is_any_number(router: FakeRouter, timeout: Any):
    with Client(router.target, timeout=timeout) as client:
        assert client.get("boards", "1").value == 7
        assert client.get("boards", "1", timeout=timeout).value == 7
        assert client.count("boards", timeout=timeout).count == 2


@pytest.mark.parametrize("timeout", ["5", timedelta(seconds=5), 5j, b"5"])
def test_what_is_no_number_is_no_timeout(router: FakeRouter, timeout: Any):
    with Client(router.target) as client, pytest.raises(TypeError, match="number of seconds"):
        client.get("boards", "1", timeout=timeout)


def test_nan_is_no_timeout(router: FakeRouter):
    with Client(router.target) as client, pytest.raises(ValueError, match="NaN"):
        client.get("boards", "1", timeout=float("nan"))
