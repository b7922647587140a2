"""The real proxy with real TLS: who gets in, what it hands on of them, and files that change."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.link.link import CallFailed
from statehouse.link.proxy import ProxyTls
from statehouse.local.ports import LOOPBACK
from statehouse.rpc.channels import channel
from statehouse.rpc.failures import from_rpc_error
from statehouse.security.shown import NOTHING_SHOWN, Shown
from tests.integration.proxy.served import (
    BATCH_GET,
    BOUNDS,
    GET,
    MAX_BYTES,
    TWICE,
    Served,
    call,
    reason,
    served,
    set_within,
    until,
)
from tests.support.certificates import Authority, Issued

URI = "spiffe://here/reader"
# Files are looked at every second; this is a deadline, and nothing waits that long.
NOTICED_S = 15.0


CERTIFICATE_BYTES_MAX = 16 << 10
# With these names, of 200 bytes and more, a certificate is as large as it may be.
LARGEST_NAMES = 72


class Keys:
    """A CA, a server's certificate and a caller's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = Authority(folder, "ca")
        self.server = self.ca.issue(["node", LOOPBACK])
        self.caller = self.ca.issue(["reader"], [URI])

    def tls(self, callers: str = "required", *, age_ms: int = 600_000) -> ProxyTls:
        return ProxyTls(self.server.certificate_path, self.server.key_path, self.ca.path, callers, age_ms)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def large_certificate(keys: Keys, *, names: int) -> Issued:
    return keys.ca.issue(["reader"], [f"spiffe://here/{'x' * 200}/{number:02}" for number in range(names)])


@asynccontextmanager
async def secure(it: Served, ca: Path, own: Issued | None) -> AsyncIterator[grpc.aio.Channel]:
    """Open a connection of one's own."""
    credentials = _credentials(ca, own)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 50)]
    async with grpc.aio.secure_channel(it.target, credentials, options) as at:
        yield at


def _credentials(ca: Path, own: Issued | None) -> grpc.ChannelCredentials:
    pair = (None, None) if own is None else (own.key_path.read_bytes(), own.certificate_path.read_bytes())
    return grpc.ssl_channel_credentials(ca.read_bytes(), *pair)


async def asked(it: Served, ca: Path, own: Issued | None) -> bytes | Reason:
    """Ask over a new connection."""
    async with secure(it, ca, own) as at:
        outcome = await call(at, GET, b"ab")
    return outcome.reason if isinstance(outcome, LookupFailure) else outcome[0]


async def test_what_callers_show_is_handed_on(keys: Keys) -> None:
    async with served(tls=keys.tls()) as it, secure(it, keys.ca.path, keys.caller) as at:
        lies = [("statehouse-certificate-bin", b"lie"), ("statehouse-address", "lie"), ("statehouse-other", "lie")]
        given = [("authorization", "Bearer t"), ("x-mine", "kept"), *lies]
        for _ in range(2):
            assert await call(at, GET, b"ab", metadata=given) == [b"ba"]
        it.may_go_on.set()
        assert await call(at, BATCH_GET, b"ab", metadata=given) == [b"ba"]
        assert await call(at, GET, b"ab") == [b"ba"]
        shown = Shown(keys.caller.der, "Bearer t", LOOPBACK)
        assert it.shown == [shown, shown, shown, Shown(keys.caller.der, "", LOOPBACK)]
        assert it.shown[0] is it.shown[1] is it.shown[2]

        assert await call(at, TWICE, b"ab", metadata=given) == [b"ab", b"ab"]
        told = {key: value for key, value in it.metadata[0].items() if key.startswith(("statehouse-", "auth", "x-"))}
        assert told == {
            "authorization": "Bearer t",
            "x-mine": "kept",
            "statehouse-certificate-bin": keys.caller.der,
            "statehouse-address": LOOPBACK,
        }


async def test_without_tls_only_an_address_is_shown_and_nothing_passed_off_as_shown() -> None:
    async with served() as it, channel(it.target, MAX_BYTES) as at:
        lies = [("statehouse-certificate-bin", b"lie"), ("statehouse-address", "lie"), ("authorization", "Bearer t")]
        for more in ([], [("on-behalf-of-bin", b"lie")], [("authorization", "Bearer u")]):
            assert await call(at, GET, b"ab", metadata=lies + more) == [b"ba"]
        assert it.shown == [Shown(address=LOOPBACK)] * 3
        assert it.shown[0] is it.shown[1] is it.shown[2], "it is told once for a connection"
        assert await call(at, TWICE, b"ab", metadata=lies) == [b"ab", b"ab"]
        told = {key: value for key, value in it.metadata[0].items() if key.startswith("statehouse-")}
        assert told == {"statehouse-address": LOOPBACK}
        assert it.metadata[0]["authorization"] == "Bearer t"


async def test_large_tokens_and_certificates_pass(keys: Keys) -> None:
    large = large_certificate(keys, names=LARGEST_NAMES)
    assert CERTIFICATE_BYTES_MAX - 300 < len(large.der) <= CERTIFICATE_BYTES_MAX
    async with served(tls=keys.tls()) as it, secure(it, keys.ca.path, large) as at:
        given = [("authorization", "Bearer " + "x" * 8_000)]
        for _ in range(20):  # grpcio refuses by chance
            assert await call(at, TWICE, b"ab", metadata=given) == [b"ab", b"ab"]
        assert await call(at, GET, b"ab", metadata=given) == [b"ba"]
        assert it.shown == [Shown(large.der, given[0][1], LOOPBACK)]


async def test_a_certificate_that_is_too_large_gets_nobody_in(keys: Keys) -> None:
    too_large = large_certificate(keys, names=LARGEST_NAMES + 1)
    assert CERTIFICATE_BYTES_MAX < len(too_large.der) < CERTIFICATE_BYTES_MAX + 300
    async with served(tls=keys.tls()) as it:
        assert await asked(it, keys.ca.path, too_large) is Reason.UNREACHABLE
        assert await asked(it, keys.ca.path, large_certificate(keys, names=LARGEST_NAMES)) == b"ba"


@pytest.mark.parametrize("callers", ["none", "optional", "required"])
async def test_who_gets_in(keys: Keys, tmp_path: Path, callers: str) -> None:
    strangers = Authority(tmp_path, "strangers")
    async with served(tls=keys.tls(callers)) as it:

        async def outcome(own: Issued | None) -> bytes | Reason:
            return await asked(it, keys.ca.path, own)

        assert await outcome(keys.caller) == b"ba"
        assert await outcome(None) == (Reason.UNREACHABLE if callers == "required" else b"ba")
        foreign = b"ba" if callers == "none" else Reason.UNREACHABLE
        assert await outcome(strangers.issue(["reader"])) == foreign
        assert await outcome(keys.ca.issue(["reader"], expired=True)) == foreign
        known = b"" if callers == "none" else keys.caller.der
        assert {each.certificate for each in it.shown} == ({known} if callers == "required" else {known, b""})
        assert await asked(it, strangers.path, keys.caller) is Reason.UNREACHABLE, "we check the server as well"


async def test_nothing_else_is_spoken(keys: Keys) -> None:
    async with served(tls=keys.tls("none")) as it:
        async with channel(it.target, MAX_BYTES) as plain:
            assert await reason(plain, GET, b"ab") is Reason.UNREACHABLE

        async def handshake(version: ssl.TLSVersion) -> tuple[str | None, str | None]:
            context = ssl.create_default_context(cafile=keys.ca.path)
            context.set_ciphers("ALL:@SECLEVEL=0")  # else this end would refuse old versions
            context.set_alpn_protocols(["h2"])
            context.minimum_version = context.maximum_version = version
            _, writer = await asyncio.open_connection(LOOPBACK, it.server.port, ssl=context)
            spoken = writer.get_extra_info("ssl_object")
            found = (spoken.version(), spoken.selected_alpn_protocol())
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            return found

        assert await handshake(ssl.TLSVersion.TLSv1_2) == ("TLSv1.2", "h2")
        assert await handshake(ssl.TLSVersion.TLSv1_3) == ("TLSv1.3", "h2")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"), pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await handshake(ssl.TLSVersion.TLSv1_1)


async def test_certificates_and_the_ca_change_while_calls_go_on(keys: Keys, tmp_path: Path) -> None:
    """A new CA comes: first it is trusted next to the old one, then it issues, then it is trusted alone."""
    new = Authority(tmp_path, "new")
    both = tmp_path / "both.pem"
    both.write_bytes(keys.ca.path.read_bytes() + new.path.read_bytes())
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(keys.ca.path.read_bytes())
    tls = replace(keys.tls(), ca=trusted)
    new_caller = new.issue(["reader"])
    failed: list[object] = []
    done = asyncio.Event()

    # A caller that asks this often has many connections that are not quite closed yet.
    many = replace(BOUNDS, max_connections=10_000, max_connections_per_address=10_000)
    async with (
        served(tls=tls, bounds=many) as it,
        served(tls=tls, bounds=many) as other,
        secure(it, both, keys.caller) as kept,
    ):
        rounds = 0

        async def go_on() -> None:
            nonlocal rounds
            while not done.is_set():
                outcomes = [
                    await call(kept, GET, b"ab"),
                    await asked(it, both, callers[-1]),
                    await it.proxy.link.call(other.target, GET, b"ab", 20.0),
                ]
                other_link.drop(other.target, 1.0)  # the next call takes a connection of its own
                failed.extend(each for each in outcomes if each not in ([b"ba"], b"ba"))
                rounds += 1

        async def trusts(caller: Issued, *, is_trusted: bool) -> None:
            for server in (it, other):
                await until(
                    lambda server=server: asked(server, both, caller),  # type: ignore[misc]
                    lambda found: (found == b"ba") is is_trusted,
                    NOTICED_S,
                )

        callers, other_link = [keys.caller], it.proxy.link
        going = asyncio.ensure_future(go_on())
        assert await asked(it, both, new_caller) is Reason.UNREACHABLE
        trusted.write_bytes(both.read_bytes())
        await trusts(new_caller, is_trusted=True)
        keys.server.replace(new.issue(["node", LOOPBACK]))
        for server in (it, other):  # a caller that trusts the new one only gets in when it is shown
            await until(
                lambda server=server: asked(server, new.path, new_caller),  # type: ignore[misc]
                lambda found: found == b"ba",
                NOTICED_S,
            )
        callers.append(new_caller)
        begun = rounds

        async def since() -> int:
            return rounds - begun

        await until(since, lambda count: count >= 2)  # no call with the old one is under way any more
        new.path.replace(trusted)
        await trusts(keys.caller, is_trusted=False)
        done.set()
        await going
        assert not failed


async def test_files_that_break_leave_the_ones_before_in_force(keys: Keys, capfd: pytest.CaptureFixture[str]) -> None:
    async with served(tls=keys.tls()) as it:
        keys.server.key_path.write_text("not a key")
        logged = ""

        async def tried() -> str:
            nonlocal logged
            assert await asked(it, keys.ca.path, keys.caller) == b"ba"
            logged += capfd.readouterr().err
            return logged

        await until(tried, lambda found: "can't be used" in found, NOTICED_S)
        assert str(keys.server.key_path) in logged
        assert "not a key" not in logged
        keys.server.replace(keys.ca.issue(["other", LOOPBACK]))
        renewed = keys.server.der

        async def shown() -> bytes:
            pem = await asyncio.to_thread(_certificate_of, it.server.port, keys)
            return ssl.PEM_cert_to_DER_cert(pem)

        await until(shown, lambda found: found == renewed, NOTICED_S)


def _certificate_of(port: int, keys: Keys) -> str:
    return ssl.get_server_certificate((LOOPBACK, port), ca_certs=str(keys.ca.path))


@pytest.mark.parametrize("broken", ["certificate", "key", "ca"])
async def test_files_that_cannot_be_used_end_the_start(keys: Keys, tmp_path: Path, broken: str) -> None:
    missing, empty = tmp_path / "missing.pem", tmp_path / "empty.pem"
    empty.touch()
    for file in (missing, empty):
        tls = replace(keys.tls(), **{broken: file})
        with pytest.raises(ConfigurationError, match=f"TLS files can't be used: .*{file.name}"):
            async with served(tls=tls):
                pass


async def test_servers_that_are_called_are_checked(keys: Keys, tmp_path: Path) -> None:
    nodes = Authority(tmp_path, "nodes")

    async def outcome(tls: ProxyTls, other: Served) -> bytes | Reason:
        async with served(tls=tls) as it:
            try:
                return await it.proxy.link.call(other.target, GET, b"ab", 20.0)
            except CallFailed as error:
                return from_rpc_error(error).reason

    named = keys.ca.issue(["any-node"])
    async with served(tls=replace(keys.tls(), certificate=named.certificate_path, key=named.key_path)) as other:
        mine = replace(keys.tls(), certificate=keys.caller.certificate_path, key=keys.caller.key_path)
        assert await outcome(mine, other) is Reason.UNREACHABLE, "its certificate does not have its address"
        assert await outcome(replace(mine, server_name="any-node"), other) == b"ba"
        assert other.shown == [Shown(keys.caller.der, "", LOOPBACK)]
        assert await outcome(replace(mine, server_name="other"), other) is Reason.UNREACHABLE
        by_nodes = replace(mine, server_name="any-node", ca=nodes.path)
        assert await outcome(by_nodes, other) is Reason.UNREACHABLE
        by_system = replace(mine, server_name="any-node", ca=None, callers="none")
        assert await outcome(by_system, other) is Reason.UNREACHABLE, "its CA is not one of the system's"


async def test_one_connection_may_have_many_authorizations(keys: Keys) -> None:
    tokens = [f"Bearer {number}" for number in range(40)]
    async with served(tls=keys.tls("optional")) as it:
        async with secure(it, keys.ca.path, None) as at:
            it.may_go_on.set()
            for _ in range(2):
                many = [
                    call(at, path, b"ab", metadata=[("authorization", each)])
                    for each in tokens
                    for path in (GET, BATCH_GET)
                ]
                assert await asyncio.gather(*many) == [[b"ba"]] * len(many)
            counts = [sum(each.authorization == token for each in it.shown) for token in tokens]
            assert counts == [4] * len(tokens)
            assert len(it.proxy.link.callers) <= 1 + 16
            twice = await call(at, GET, b"ab", metadata=[("authorization", "a"), ("authorization", "b")])
            assert isinstance(twice, LookupFailure)
            assert (
                await call(at, TWICE, b"ab", metadata=[("authorization", "a"), ("authorization", "b")]) != [b"ab"] * 2
            )

        async def known() -> dict[int, Shown]:
            return it.proxy.link.callers

        await until(known, lambda callers: callers == {0: NOTHING_SHOWN})


async def test_connections_have_an_age_and_calls_finish(keys: Keys) -> None:
    async with served(tls=keys.tls(age_ms=1_000)) as it, secure(it, keys.ca.path, keys.caller) as at:
        under_way = asyncio.ensure_future(call(at, BATCH_GET, b"long"))
        await set_within(it.arrived)

        async def tried() -> int:
            assert await call(at, GET, b"ab") == [b"ba"]
            return len({id(each) for each in it.shown})

        await until(tried, lambda connections: connections >= 3, 30.0)
        assert not under_way.done()
        it.may_go_on.set()
        assert await under_way == [b"gnol"]
