"""Calls over TLS: what is shown and trusted, files that change meanwhile, and what people hear if it fails."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from router.calls.channels import NodeChannels
from router.fleet.table import RoutedNode
from statehouse.client import AsyncClient, Client, ClientTls
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.local.certificates import make_certificates
from statehouse.rpc.channels import blocking_channel, channel
from statehouse.rpc.credentials import CredentialFiles
from statehouse.security import changed_files
from statehouse.v1 import query_service_pb2, query_service_pb2_grpc, types_pb2
from tests.support.fake_router import FakeRouter, fake_router
from tests.support.polling import poll_until_async

MAX_BYTES = 1 << 20


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Certificates that a test may replace."""
    shutil.copytree(made, tmp_path / "tls")
    return tmp_path / "tls"


@pytest.fixture(autouse=True)
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_files, "LOOKED_EVERY_S", 0.0)


def served_as(folder: Path, *, demands: bool = True) -> grpc.ServerCredentials:
    """What a server shows, and whether it demands certificates of callers."""
    pair = ((folder / "router.key").read_bytes(), (folder / "router.pem").read_bytes())
    return grpc.ssl_server_credentials([pair], (folder / "ca.pem").read_bytes() if demands else None, demands)


@pytest.fixture
def router(made: Path) -> Iterator[FakeRouter]:
    with fake_router(served_as(made)) as running:
        running.values = {"1": "one"}
        yield running


def shows(folder: Path, name: str = "reader") -> ClientTls:
    return ClientTls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def put(folder: Path, name: str, other: Path) -> None:
    """Put another certificate in a certificate's place: file by file, as tools do."""
    for suffix in ("key", "pem"):
        scratch = folder / "scratch"
        shutil.copy(other.with_suffix(f".{suffix}"), scratch)
        scratch.replace(folder / f"{name}.{suffix}")


def test_both_clients_show_their_certificate(made: Path, router: FakeRouter) -> None:
    with Client(router.target, tls=shows(made)) as client:
        assert client.get("boards", "1").value == "one"

    async def read() -> object:
        async with AsyncClient(router.target, tls=shows(made, "operator")) as client:
            return (await client.get("boards", "1")).value

    assert asyncio.run(read()) == "one"
    assert {name for name, _ in router.shown} == {"reader", "operator"}


async def test_a_new_certificate_is_shown_and_no_call_fails(folder: Path, made: Path, router: FakeRouter) -> None:
    async with AsyncClient(router.target, tls=shows(folder)) as client, client.watch("boards", "1") as watched:
        under_way = asyncio.create_task(anext(watched))
        await poll_until_async(lambda: router.shown, 10, "the watch")
        reads = [asyncio.create_task(client.get("boards", "1")) for _ in range(20)]
        await asyncio.sleep(0)  # they have begun
        put(folder, "reader", made / "operator.pem")

        assert (await client.get("boards", "1")).value == "one"
        assert router.shown[-1][0] == "operator"
        assert {(await read).value for read in reads} == {"one"}
        done, _ = await asyncio.wait([under_way], timeout=0.2)
        assert not done, "a watch goes on over the connection that it has"


async def test_certificates_may_change_again_and_again_while_calls_are_made(
    folder: Path, made: Path, router: FakeRouter
) -> None:
    async with AsyncClient(router.target, tls=shows(folder), direct=False) as client:
        for turn in range(10):
            put(folder, "reader", made / ("operator.pem", "health.pem")[turn % 2])
            batch = [asyncio.create_task(client.get("boards", str(turn % 2))) for _ in range(10)]
            await client.count("boards")
            assert {(await read).found for read in batch} == {turn % 2 == 1}
        assert {name for name, _ in router.shown} == {"operator", "health"}


async def test_a_client_that_is_closed_ends_calls_of_channels_before(
    folder: Path, made: Path, router: FakeRouter
) -> None:
    client = AsyncClient(router.target, tls=shows(folder))
    watched = client.watch("boards", "1")
    under_way = asyncio.ensure_future(anext(watched))
    await poll_until_async(lambda: router.shown, 10, "the watch")
    put(folder, "reader", made / "operator.pem")
    await client.get("boards", "1")
    await asyncio.wait_for(client.close(), 5)
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(under_way, 5)


async def test_files_that_make_no_sense_are_not_taken(
    folder: Path, made: Path, router: FakeRouter, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(router.target, tls=shows(folder)) as client:
        shutil.copy(made / "operator.pem", folder / "reader.pem")  # and the key is still the reader's
        for _ in range(3):
            assert (await client.get("boards", "1")).value == "one"
        assert router.shown[-1][0] == "reader"
        assert caplog.text.count("what was read before stays in use") == 1
        (folder / "reader.key").unlink()
        assert (await client.get("boards", "1")).value == "one"
        shutil.copy(made / "operator.key", folder / "reader.key")
        assert (await client.get("boards", "1")).value == "one"
        assert router.shown[-1][0] == "operator"


async def test_a_token_goes_with_each_call_and_is_read_anew(made: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    with fake_router(served_as(made, demands=False)) as router:
        async with AsyncClient(router.target, tls=ClientTls(made / "ca.pem", token=token)) as client:
            await client.get("boards", "1")
            assert router.shown[-1] == ("", "Bearer first")
            token.write_text("the second one\n")
            await client.get("boards", "1")
            assert router.shown[-1] == ("", "Bearer first"), "it is no token"
            token.write_text("second")
            await client.get("boards", "1")
            assert router.shown[-1] == ("", "Bearer second")


def test_files_are_looked_at_once_a_second(folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_files, "LOOKED_EVERY_S", 1.0)
    now = 0.0
    files = CredentialFiles(shows(folder), lambda: now)
    put(folder, "reader", made / "operator.pem")
    now = 0.9
    assert files.version == 1
    now = 1.0
    assert files.version == 2
    assert files.version == 2


def test_a_server_name_takes_the_place_of_the_host(made: Path, router: FakeRouter) -> None:
    tls = replace(shows(made), server_name="elsewhere")
    with (
        Client(router.target, tls=tls) as client,
        pytest.raises(LookupFailure, match="has other names"),
    ):
        client.get("boards", "1")
    with Client(router.target, tls=replace(tls, server_name="localhost")) as client:
        client.get("boards", "1")
    with blocking_channel(router.target, shows(made, "health")) as blocking:
        request = query_service_pb2.GetRequest(store="boards", key=types_pb2.Key(text="1"))
        query_service_pb2_grpc.QueryServiceStub(blocking).Get(request, timeout=10.0)
    assert router.shown[-1][0] == "health"


Tls = Callable[[Path], ClientTls | None]


@pytest.mark.parametrize(
    ("server", "caller", "told"),
    [
        ("tls", lambda _folder: None, "TLS: if the server speaks nothing else, give the file"),
        ("mutual", lambda folder: ClientTls(folder / "ca.pem"), "TLS: if the server demands certificates"),
        ("mutual", lambda _folder: None, "TLS: if the server speaks nothing else"),
        ("plain", lambda folder: shows(folder), "TLS: the server doesn't speak it"),  # noqa: PLW0108 - as the others
        ("other", lambda folder: shows(folder), "TLS: no CA that is trusted has signed"),  # noqa: PLW0108 - as above
    ],
)
def test_who_can_not_connect_is_told_why(made: Path, tmp_path: Path, server: str, caller: Tls, told: str) -> None:
    if server == "other":
        make_certificates(tmp_path)
    shown = {
        "plain": lambda: None,
        "tls": lambda: served_as(made, demands=False),
        "mutual": lambda: served_as(made),
        "other": lambda: served_as(tmp_path, demands=False),
    }[server]()
    with (
        fake_router(shown) as router,
        Client(router.target, tls=caller(made)) as client,
        pytest.raises(LookupFailure) as failed,
    ):
        client.get("boards", "1")
    assert failed.value.reason is Reason.UNREACHABLE
    assert router.target in failed.value.message
    assert told in failed.value.message


def test_who_is_not_there_is_not_said_to_speak_tls(made: Path) -> None:
    with Client("127.0.0.1:1", tls=shows(made)) as client, pytest.raises(LookupFailure) as failed:
        client.get("boards", "1")
    assert "TLS" not in failed.value.message


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ca": "nowhere.pem"}, "can't read"),
        ({"ca": "reader.key"}, "holds no certificates"),
        ({"key": "operator.key"}, "no certificate and its key"),
        ({"certificate": "rules.toml"}, "no certificate and its key"),
        ({"token": "nowhere"}, "can't read"),
        ({"token": "empty"}, "holds no token"),
        ({"token": "rules.toml"}, "holds no token"),
    ],
)
def test_wrong_files_are_refused_at_the_start(folder: Path, given: dict[str, str], told: str) -> None:
    (folder / "empty").touch()
    tls = replace(shows(folder), **{name: folder / file for name, file in given.items()})
    with pytest.raises(ConfigurationError, match=told) as refused:
        Client("127.0.0.1:1", tls=tls)
    assert "identity" not in str(refused.value)


def test_halves_are_refused(made: Path) -> None:
    with pytest.raises(ConfigurationError, match="go together"):
        ClientTls(certificate=made / "reader.pem")
    assert ClientTls.from_environment({}) is None
    with pytest.raises(ConfigurationError, match="STATEHOUSE_TLS_CA"):
        ClientTls.from_environment({"STATEHOUSE_TOKEN_FILE": "token"})
    whole = {"STATEHOUSE_TLS_CA": "a", "STATEHOUSE_TOKEN_FILE": "t", "STATEHOUSE_TLS_SERVER_NAME": "s"}
    assert ClientTls.from_environment(whole) == ClientTls(Path("a"), token=Path("t"), server_name="s")


async def test_a_router_calls_nodes_over_tls_and_shows_new_certificates(folder: Path, made: Path) -> None:
    names: list[str] = []

    async def get(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        names.append(context.auth_context()["x509_common_name"][0].decode())
        return b""

    async def watch(_request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"begun")
        await asyncio.get_running_loop().create_future()

    server = grpc.aio.server()
    handlers = {"Get": grpc.unary_unary_rpc_method_handler(get), "Watch": grpc.unary_stream_rpc_method_handler(watch)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("statehouse.v1.QueryService", handlers),))
    node = RoutedNode("a", "127.0.0.1", server.add_secure_port("127.0.0.1:0", served_as(made)))
    await server.start()
    files = CredentialFiles(shows(folder, "router"))
    channels = NodeChannels(None, max_message_bytes=MAX_BYTES, close_grace_s=0.0, files=files)
    stream = channels.stream(node, "Watch", b"")
    assert await stream.read() == b"begun"
    await channels.ask(node, "Get", b"", 10.0)
    put(folder, "router", made / "operator.pem")
    await channels.ask(node, "Get", b"", 10.0)
    assert names == ["router", "operator"]
    assert not stream.done()
    assert await channels.probe(node, 10.0), "UNIMPLEMENTED is an answer, too"
    await asyncio.wait_for(channels.close(), 5)
    assert stream.done()
    await server.stop(0)


async def test_a_channel_without_files_is_plain() -> None:
    with fake_router() as router:
        async with channel(router.target, MAX_BYTES) as plain:
            request = query_service_pb2.GetRequest(store="boards", key=types_pb2.Key(text="1"))
            assert not (await query_service_pb2_grpc.QueryServiceStub(plain).Get(request)).found
