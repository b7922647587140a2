"""The gate with real files: who passes, who is denied, and what a changed file changes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from structlog.testing import capture_logs

from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.rpc.requests import Unreadable
from statehouse.security import gate as gates
from statehouse.security.gate import Gate
from statehouse.security.shown import NOTHING_SHOWN, Shown
from statehouse.serdes.wire import framed
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.bearer_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.support.certificates import Authority, Issued
from tests.support.polling import poll_until_async

GET = "/statehouse.v1.QueryService/Get"
BATCH_GET = "/statehouse.v1.QueryService/BatchGet"
LOCATE = "/statehouse.v1.FleetService/LocateKey"
DRAIN = "/statehouse.v1.NodeService/Drain"
WATCH_FLEET = "/statehouse.v1.FleetService/WatchFleet"
NODES = "/statehouse.v1.FleetService/ListNodes"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"


def identity(name: str, roles: str, more: str = "", *, certificates: str = "") -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f'[[identity]]\nname = "{name}"\nroles = {roles}\ntoken_sha256 = ["{digest}"]\n{more}\n' + (
        f"certificates = {certificates}\n" if certificates else ""
    )


READER = identity("reports", '["reader"]', 'stores = ["top", "day-*"]', certificates='["CN=reports"]')
RULES = READER + identity("ops", '["operator"]') + identity("router", '["router"]') + identity("other", '["reader"]')


def by(name: str) -> Shown:
    """Return what is shown by the identity of this name: its token is its name."""
    return Shown(authorization=f"Bearer {name}", address="10.0.0.1:5")


def get(store: str, hops: int = 0) -> bytes:
    forwarding = types_pb2.Forwarding(epoch=4, hops=hops)
    return query_service_pb2.GetRequest(store=store, forwarding=forwarding).SerializeToString()


class House:
    """A gate with its files, and what it has called."""

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        self.authority = Authority(folder, "ca")
        self.rules, self.crl = folder / "rules.toml", folder / "revoked.pem"
        self.rules.write_text(rules)
        self.revoke()
        self.denied: Counter[Reason] = Counter()
        self.unusable, self.now = 0, time.time()
        self.gate = self.open()

    def open(self) -> Gate:
        return Gate(
            self.rules,
            self.authority.path,
            self.crl,
            on_denied=lambda reason: self.denied.update([reason]),
            on_unusable=self._count,
            clock=lambda: self.now,
        )

    def _count(self) -> None:
        self.unusable += 1

    def revoke(self, *issued: Issued, hours: float = 24.0) -> None:
        self.authority.crl(issued, hours=hours).replace(self.crl)

    def refusal(self, method: str, request: object, shown: Shown) -> LookupFailure:
        with pytest.raises(LookupFailure) as caught:
            self.gate.admit(method, request, shown)
        return caught.value

    def passes(self, method: str, request: object, shown: Shown) -> bool:
        try:
            self.gate.admit(method, request, shown)
        except LookupFailure:
            return False
        return True


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_what_the_rules_allow_passes(house: House):
    for store in ("top", "day-", "day-7"):
        house.gate.admit(GET, get(store), by("reports"))
        house.gate.admit(GET, query_service_pb2.GetRequest(store=store), by("reports"))
    house.gate.admit(HEALTH, b"", by("reports"))
    house.gate.admit("metrics", None, by("ops"))
    assert house.denied == {}


def test_a_denial_says_what_is_lacking(house: House):
    failure = house.refusal(GET, get("bottom"), by("reports"))
    assert failure.reason is Reason.PERMISSION_DENIED
    assert failure.metadata == {"identity": "reports", "right": "lookup", "store": "bottom"}
    assert failure.message == "reports lacks the right lookup for the store 'bottom'"
    failure = house.refusal(DRAIN, b"", by("reports"))
    assert (failure.reason, failure.message) == (Reason.PERMISSION_DENIED, "reports lacks the right drain")
    assert house.denied == {Reason.PERMISSION_DENIED: 2}


def test_what_a_caller_might_do_can_be_asked_without_a_denial(house: House):
    assert house.gate.may(GET, by("reports"))
    with capture_logs() as lines:
        assert not house.gate.may(DRAIN, by("reports"))
    assert (lines, house.denied) == ([], {})


def test_who_is_not_known_is_not_authenticated(house: House):
    for shown in (NOTHING_SHOWN, by("nobody")):
        failure = house.refusal(GET, get("top"), shown)
        assert failure.reason is Reason.UNAUTHENTICATED
    assert house.refusal(HEALTH, b"", NOTHING_SHOWN).metadata["identity"] == "anonymous"
    assert house.refusal(HEALTH, b"", by("nobody")).metadata["identity"] == "unknown"
    assert house.denied == {Reason.UNAUTHENTICATED: 4}


def test_a_method_that_is_not_known_is_denied_to_all(house: House):
    failure = house.refusal("/statehouse.v1.QueryService/Steal", b"", by("router"))
    assert failure.reason is Reason.PERMISSION_DENIED
    assert house.refusal("/x", b"", NOTHING_SHOWN).reason is Reason.UNAUTHENTICATED


def test_every_store_of_a_batch_must_be_allowed(house: House):
    batch = framed([get("top"), get("day-1")])
    house.gate.admit(BATCH_GET, batch, by("reports"))
    house.gate.admit(BATCH_GET, query_service_pb2.BatchGetRequest.FromString(batch), by("reports"))
    for entries in ([get("top"), get("bottom")], [b"\x0a\x01\xff", get("bottom")]):
        failure = house.refusal(BATCH_GET, framed(entries), by("reports"))
        assert failure.metadata["store"] == "bottom"


def test_only_routers_forward(house: House):
    house.gate.admit(GET, get("top", hops=1), by("router"))
    house.gate.admit(GET, get("top", hops=0), by("reports"))  # with an epoch, as clients that ask nodes do
    for request in (get("top", hops=1), query_service_pb2.GetRequest.FromString(get("top", hops=1))):
        assert house.refusal(GET, request, by("reports")).metadata["right"] == "forward"
    assert not house.passes(BATCH_GET, framed([get("top"), get("top", hops=1)]), by("reports"))


def test_clients_may_see_whether_a_router_is_there(house: House):
    house.gate.admit(LOCATE, b"", by("reports"))
    house.gate.admit(LOCATE, fleet_service_pb2.LocateKeyRequest(), by("reports"))
    assert not house.passes(LOCATE, b"", by("ops"))


def test_a_request_without_a_store_is_for_who_may_read_all(house: House):
    assert not house.passes(GET, b"", by("reports"))
    assert house.passes(GET, b"", by("other"))


def test_what_cannot_be_read_is_left_to_the_handler(house: House):
    for request in (b"\xff", Unreadable("never came"), None):
        assert house.passes(GET, request, by("reports"))
        assert not house.passes(GET, request, by("ops"))


def test_a_caller_is_checked_again_when_what_was_shown_ends(house: House):
    issued = house.authority.issue(["reports"], hours=2)
    shown = Shown(issued.der)
    house.gate.admit(GET, get("top"), shown)
    house.now += 7_100
    house.gate.admit(GET, get("top"), shown)
    house.now += 200
    assert "expired" in house.refusal(GET, get("top"), shown).message


async def test_an_identity_that_is_taken_away_is_refused(house: House):
    house.gate.admit(GET, get("top"), by("reports"))
    house.rules.write_text(RULES.replace(READER, ""))
    await house.gate.reload_if_changed()
    assert house.refusal(GET, get("top"), by("reports")).reason is Reason.UNAUTHENTICATED
    house.gate.admit(GET, get("top"), by("other"))


async def test_a_narrower_rule_holds_for_who_is_known_already(house: House):
    house.gate.admit(GET, get("top"), by("reports"))
    house.rules.write_text(RULES.replace('"top", ', ""))
    await house.gate.reload_if_changed()
    assert house.refusal(GET, get("top"), by("reports")).reason is Reason.PERMISSION_DENIED


async def test_a_revoked_certificate_is_refused(house: House):
    issued, other = (house.authority.issue(["reports"]) for _ in range(2))
    house.gate.admit(GET, get("top"), Shown(issued.der))
    house.revoke(issued)
    await house.gate.reload_if_changed()
    assert "revoked" in house.refusal(GET, get("top"), Shown(issued.der)).message
    house.gate.admit(GET, get("top"), Shown(other.der))


async def test_files_that_have_not_changed_are_not_read(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(house.gate._files, "read", lambda: pytest.fail("read without need"))
    await house.gate.reload_if_changed()
    await house.gate.reload_if_changed()


async def test_while_a_file_is_wrong_the_rules_before_hold(house: House):
    with capture_logs() as logs:
        for wrong in ("", "[[identity]]\n", "nonsense"):
            house.rules.write_text(wrong)
            for _ in range(3):
                await house.gate.reload_if_changed()
            house.gate.admit(GET, get("top"), by("reports"))
        assert house.unusable == len(logs) == 3
        assert all(each["log_level"] == "error" and str(house.rules) in each["error"] for each in logs)
        house.rules.write_text(RULES.replace(READER, ""))
        await house.gate.reload_if_changed()
    assert not house.passes(GET, get("top"), by("reports"))
    assert house.unusable == 3


async def test_a_file_that_cannot_be_read_is_tried_again(house: House, monkeypatch: pytest.MonkeyPatch):
    house.rules.write_text(RULES.replace(READER, ""))
    read, times = house.gate._files.read, 0

    def failing() -> object:
        nonlocal times
        times += 1
        if times <= 2:
            raise OSError(24, "Too many open files")
        return read()

    monkeypatch.setattr(house.gate._files, "read", failing)
    for _ in range(2):
        await house.gate.reload_if_changed()
        house.gate.admit(GET, get("top"), by("reports"))
    await house.gate.reload_if_changed()
    assert (times, house.unusable) == (3, 1)
    assert not house.passes(GET, get("top"), by("reports"))


async def test_a_file_that_is_wrong_because_of_another_is_said_once(house: House, tmp_path: Path):
    keys = tmp_path / "jwks.json"
    keys.write_text("{}")
    jwt = f'[jwt]\nkeys = "jwks.json"\nalgorithms = ["ES256"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
    house.rules.write_text(RULES + jwt)
    for _ in range(3):
        await house.gate.reload_if_changed()
    assert house.unusable == 1
    TokenIssuer().write_keys(keys)
    await house.gate.reload_if_changed()
    assert not house.gate._files.have_changed()
    assert house.gate._known.jwt is not None


async def test_a_file_that_is_gone_leaves_the_rules_as_they_were(house: House):
    house.rules.rename(house.rules.with_suffix(".away"))
    await house.gate.reload_if_changed()
    house.gate.admit(GET, get("top"), by("reports"))
    house.rules.with_suffix(".away").rename(house.rules)
    await house.gate.reload_if_changed()
    assert house.unusable == 1


async def test_the_files_are_watched(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "RELOAD_INTERVAL_S", 0.01)
    watching = asyncio.create_task(house.gate.watch_files())
    try:
        before = house.rules.stat()
        # As long as before, and with the same time: tools may set it.
        house.rules.write_text(RULES.replace("top", "pot"))
        os.utime(house.rules, ns=(before.st_atime_ns, before.st_mtime_ns))
        await poll_until_async(
            lambda: not house.passes(GET, get("top"), by("reports")), 10.0, "the changed rules to be read"
        )
    finally:
        watching.cancel()
    assert house.passes(GET, get("pot"), by("reports"))


@pytest.mark.parametrize("which", ["rules", "crl"])
def test_a_wrong_file_at_the_start_is_an_error(house: House, which: str):
    path: Path = getattr(house, which)
    path.write_text("nonsense")
    with pytest.raises(ConfigurationError, match=r"security_rules|tls_crl"):
        house.open()
    path.unlink()
    with pytest.raises(ConfigurationError, match=path.name):
        house.open()


async def test_keys_stand_beside_the_rules_and_are_read_anew(tmp_path: Path):
    keys, issuer, later = tmp_path / "keys" / "jwks.json", TokenIssuer(), TokenIssuer()
    keys.parent.mkdir()
    issuer.write_keys(keys)
    jwt = 'jwt_subjects = ["reports@house"]\n[jwt]\nkeys = "keys/jwks.json"\nalgorithms = ["ES256"]\n'
    house = House(tmp_path, READER + jwt + f'issuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n')
    old, new = (Shown(authorization=f"Bearer {each.token()}") for each in (issuer, later))
    house.gate.admit(GET, get("top"), old)
    assert "signature" in house.refusal(GET, get("top"), new).message
    await house.gate.reload_if_changed()
    assert len(house.gate._callers) == 1, "read without need"
    later.write_keys(keys)
    await house.gate.reload_if_changed()
    house.gate.admit(GET, get("top"), new)
    assert "signature" in house.refusal(GET, get("top"), old).message
    keys.unlink()
    with pytest.raises(ConfigurationError, match="jwks"):
        house.open()


def test_a_json_web_token_is_known_until_its_end(tmp_path: Path):
    issuer = TokenIssuer()
    issuer.write_keys(tmp_path / "jwks.json")
    jwt = 'jwt_subjects = ["reports@house"]\n[jwt]\nkeys = "jwks.json"\nalgorithms = ["ES256"]\nleeway_s = 0\n'
    house = House(tmp_path, READER + jwt + f'issuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n')
    end = int(time.time()) + 60
    shown = Shown(authorization=f"Bearer {issuer.token(exp=end)}")
    house.gate.admit(GET, get("top"), shown)
    (kept,) = house.gate._callers.values()
    assert kept.until == end


def test_what_is_kept_of_callers_is_bounded(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "CALLERS_KEPT_MAX", 3)
    certificates = [Shown(house.authority.issue(["reports"]).der, address=str(n)) for n in range(4)]
    for shown in certificates:
        house.gate.admit(GET, get("top"), shown)
        house.gate.admit(GET, get("top"), certificates[0])
    kept = [certificate for certificate, _ in house.gate._callers]
    assert kept == [certificates[2].certificate, certificates[3].certificate, certificates[0].certificate]
    for n in range(10):
        house.passes(GET, get("top"), Shown(authorization=f"Bearer {n}"))
        house.passes(GET, get("top"), Shown(certificates[0].certificate, address=f"other-{n}"))
    assert len(house.gate._callers) == 3


def test_the_audit_log_has_denials_and_operators_calls_and_no_secret(house: House):
    with capture_logs() as logs:
        house.gate.admit(DRAIN, b"", by("ops"))
        house.gate.admit(GET, get("top"), by("reports"))
        house.passes(GET, get("x" * 100_000), by("reports"))
        house.passes(GET, get("top"), by("correct-horse"))
    assert [(each["event"], each["identity"], each["address"], each["method"]) for each in logs] == [
        ("operator's call", "ops", "10.0.0.1:5", DRAIN),
        ("denied", "reports", "10.0.0.1:5", GET),
        ("denied", "unknown", "10.0.0.1:5", GET),
    ]
    assert "horse" not in str(logs)
    assert len(str(logs)) < 2_000


def test_the_audit_log_has_what_only_operators_do(tmp_path: Path):
    also = identity("both", '["reader", "operator"]') + identity("fleet", '["reader"]', 'also = ["fleet"]')
    gate = House(tmp_path, RULES + also + identity("probe", '["health"]')).gate
    with capture_logs() as logs:
        for name in ("ops", "both", "fleet", "router"):
            gate.admit(WATCH_FLEET, b"", by(name))
        for method in (NODES, REFLECTION, HEALTH, "metrics"):
            gate.admit(method, None, by("ops"))
        gate.admit(GET, get("top"), by("both"))
        gate.admit("metrics", None, by("probe"))
        gate.admit(WATCH_FLEET, b"", by("ops"), again=True)
    assert [(each["event"], each["identity"], each["method"]) for each in logs] == [
        ("operator's call", "ops", WATCH_FLEET),
        ("operator's call", "both", WATCH_FLEET),
        ("operator's call", "ops", NODES),
        ("operator's call", "ops", REFLECTION),
    ]


async def test_an_overdue_list_is_said_once(house: House):
    house.revoke(hours=1)
    await house.gate.reload_if_changed()
    with capture_logs() as logs:
        house.gate._say_overdue()
        house.now += 7_200
        house.gate._say_overdue()
        house.gate._say_overdue()
    assert [each["issuers"] for each in logs] == [["CN=ca"]]


def test_without_rules_only_certificates_are_checked(house: House):
    house.revoke(bad := house.authority.issue(["x"]))
    gate = Gate(None, house.authority.path, house.crl, on_denied=lambda _: None, on_unusable=lambda: None)
    gate.admit(DRAIN, b"", NOTHING_SHOWN)
    gate.admit(GET, get("top", hops=1), Shown(house.authority.issue(["x"]).der))
    with pytest.raises(LookupFailure, match="revoked"):
        gate.admit(GET, get("top"), Shown(bad.der))


async def test_a_slip_in_one_file_does_not_keep_the_other_from_being_read(house: House):
    issued = house.authority.issue(["reports"])
    house.rules.write_text("nonsense")
    house.revoke(issued)
    await house.gate.reload_if_changed()
    assert "revoked" in house.refusal(GET, get("top"), Shown(issued.der)).message
    house.rules.write_text(RULES.replace(READER, ""))
    house.crl.write_text("nonsense")
    await house.gate.reload_if_changed()
    assert not house.passes(GET, get("top"), by("reports"))
    assert house.passes(GET, get("top"), by("other"))
    house.revoke()
    house.rules.write_text(RULES)
    await house.gate.reload_if_changed()
    assert house.passes(GET, get("top"), by("reports"))


async def test_a_name_that_no_file_has_does_not_end_the_watch(house: House):
    house.rules.write_text(RULES + '[jwt]\nkeys = "a\\u0000b"\nalgorithms = ["RS256"]\nissuer = "i"\naudience = "a"\n')
    await house.gate.reload_if_changed()
    await house.gate.reload_if_changed()
    house.rules.write_text(RULES.replace(READER, ""))
    await house.gate.reload_if_changed()
    assert not house.passes(GET, get("top"), by("reports"))


def test_nothing_is_read_for_who_may_look_up_nothing(house: House, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("statehouse.security.denial.stores_asked", lambda *_: pytest.fail("read without need"))
    assert house.refusal(BATCH_GET, framed([get("top")]), by("ops")).reason is Reason.PERMISSION_DENIED
    assert house.refusal(BATCH_GET, framed([get("top")]), Shown()).reason is Reason.UNAUTHENTICATED


def test_one_token_is_one_text(house: House):
    for text in ("Bearer  reports", "Bearer reports ", "Bearer \treports"):
        assert house.refusal(GET, get("top"), Shown(authorization=text)).reason is Reason.UNAUTHENTICATED


BOSS = identity("boss", '["operator"]', certificates='["CN=boss"]')
DEPUTY = identity("deputy", '["router"]', 'also = ["act-for"]')


def behalf(by_whom: str, other: bytes) -> Shown:
    """Return what is shown by who shows another one's certificate."""
    return replace(by(by_whom), on_behalf=other)


def test_who_may_act_for_others_drains_for_whom_may_and_both_are_logged(tmp_path: Path) -> None:
    house = House(tmp_path, RULES + BOSS + DEPUTY)
    boss, reports = (house.authority.issue((name,)).der for name in ("boss", "reports"))
    with capture_logs() as logged:
        house.gate.admit(DRAIN, None, behalf("deputy", boss))
        failure = house.refusal(DRAIN, None, behalf("deputy", reports))
    assert failure.message == "reports lacks the right drain"
    assert [(each["event"], each["forwarder"], each["identity"]) for each in logged] == [
        ("operator's call", "deputy", "boss"),
        ("denied", "deputy", "reports"),
    ]
    assert list(logged[0])[:2] == list(logged[1])[:2] == ["forwarder", "identity"]


def test_a_router_only_reads_for_whom_it_shows_the_certificate_of(tmp_path: Path) -> None:
    house = House(tmp_path, RULES + BOSS + DEPUTY)
    boss, reports = (house.authority.issue((name,)).der for name in ("boss", "reports"))
    for name in ("router", "deputy"):
        with capture_logs() as logged:
            house.gate.admit(NODES, b"", behalf(name, boss))
            house.gate.admit(GET, get("top"), behalf(name, reports))
        assert [(each["forwarder"], each["identity"]) for each in logged] == [(name, "boss")]
        # A router may read it itself, and for this one it may not.
        assert not house.passes(GET, get("bottom"), behalf(name, reports))
        assert not house.passes(NODES, b"", behalf(name, reports))
    failure = house.refusal(DRAIN, b"", behalf("router", boss))
    assert (failure.reason, failure.metadata["right"]) == (Reason.PERMISSION_DENIED, "act-for")
    assert 'also = ["act-for"]' in failure.message
    assert "ops is no router" in house.refusal(NODES, b"", behalf("ops", boss)).message
    assert "reports is no router" in house.refusal(GET, get("top"), behalf("reports", reports)).message


def test_a_certificate_of_somebody_else_counts_only_while_it_leads_to_our_ca(tmp_path: Path) -> None:
    house = House(tmp_path, RULES + BOSS + DEPUTY)
    (tmp_path / "own").mkdir()
    mine = Authority(tmp_path / "own", "ca")  # with our CA's name
    good, revoked = house.authority.issue(("boss",), hours=2), house.authority.issue(("boss",))
    house.revoke(revoked)
    gate = house.gate = house.open()
    wrong = {
        "made by themselves": mine.issue(("boss",)).der,
        "made by themselves, with their CA": mine.issue(("boss",)).der + mine.certificate.public_bytes(Encoding.DER),
        "with our CA's behind it": mine.issue(("boss",)).der + house.authority.certificate.public_bytes(Encoding.DER),
        "expired": house.authority.issue(("boss",), expired=True).der,
        "revoked": revoked.der,
        "no certificate": b"rubbish",
        "nobody's": house.authority.issue(("nobody",)).der,
    }
    for kind, shown in wrong.items():
        for method in (DRAIN, NODES):
            with capture_logs() as logged:
                assert house.refusal(method, b"", behalf("deputy", shown)).reason is Reason.UNAUTHENTICATED, kind
            assert [(each["forwarder"], each["identity"]) for each in logged] == [("deputy", "unknown")], kind
    assert house.denied == {Reason.UNAUTHENTICATED: 2 * len(wrong)}
    gate.admit(NODES, b"", behalf("router", good.der))
    house.now += 7_300
    assert "expired" in house.refusal(NODES, b"", behalf("router", good.der)).message


def test_who_was_known_by_somebody_elses_word_is_not_known_by_themselves(tmp_path: Path) -> None:
    """And the other way round: what a handshake has verified doesn't spare somebody else's word its check."""
    house = House(tmp_path, RULES + BOSS + DEPUTY)
    (tmp_path / "own").mkdir()
    constrained = Authority(tmp_path / "own", "own").issue(("boss",)).der
    for shown in (Shown(constrained), behalf("deputy", constrained)):
        assert not house.passes(NODES, b"", shown)
    boss = house.authority.issue(("boss",)).der
    house.gate.admit(NODES, b"", behalf("router", boss))
    house.gate.admit(NODES, b"", Shown(boss))
    assert {authorization for certificate, authorization in house.gate._callers if certificate == boss} == {None, ""}


def test_a_token_that_is_passed_on_decides_and_both_are_logged(tmp_path: Path) -> None:
    certified = identity("web", '["router"]', certificates='["CN=web"]')
    house = House(tmp_path, RULES + certified)
    web, nobody = (house.authority.issue((name,)).der for name in ("web", "nobody"))
    with capture_logs() as logged:
        house.gate.admit(DRAIN, b"", replace(by("ops"), certificate=web))
        house.refusal(DRAIN, b"", replace(by("reports"), certificate=web))
        house.gate.admit(DRAIN, b"", replace(by("ops"), certificate=nobody))
        house.gate.admit(DRAIN, b"", by("ops"))
    assert [(each.get("forwarder"), each["identity"]) for each in logged] == [
        ("web", "ops"),
        ("web", "reports"),
        (None, "ops"),
        (None, "ops"),
    ]


def test_without_rules_somebody_elses_certificate_must_hold_too(house: House) -> None:
    def admitted(shown: bytes, ca: Path | None) -> bool:
        gate = Gate(None, ca, None, on_denied=lambda _: None, on_unusable=lambda: None)
        try:
            gate.admit(DRAIN, b"", Shown(on_behalf=shown))
        except LookupFailure:
            return False
        return True

    good = house.authority.issue(("x",))
    assert admitted(good.der, house.authority.path)
    assert not admitted(house.authority.issue(("x",), expired=True).der, house.authority.path)
    assert not admitted(good.der, None)


async def test_a_ca_that_is_taken_out_takes_its_callers_along_on_open_connections_too(house: House) -> None:
    other = Authority(house.rules.parent, "other")
    both, alone = house.authority.path.read_bytes() + other.path.read_bytes(), house.authority.path.read_bytes()
    mine = Shown(other.issue(("reports",)).der)
    house.authority.path.write_bytes(both)
    await house.gate.reload_if_changed()
    house.gate.admit(GET, get("top"), mine)
    house.authority.path.write_bytes(alone)
    await house.gate.reload_if_changed()
    assert "no certificate in tls_ca has signed it" in house.refusal(GET, get("top"), mine).message
    house.authority.path.write_bytes(both)
    await house.gate.reload_if_changed()
    house.authority.path.write_text("nonsense")
    await house.gate.reload_if_changed()
    house.gate.admit(GET, get("top"), mine)


def replaced(path: Path, kind: str) -> bytes:
    """Put something in a file's place; return what was in it."""
    before = path.read_bytes()
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "1 GiB":
        path.touch()
        os.truncate(path, 1 << 30)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "/no/such/file")
    return before


def put_back(path: Path, content: bytes) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["rules", "crl"])
@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "link to nothing", "1 GiB"])
async def test_what_stands_in_a_file_s_place_stops_no_reloading(house: House, name: str, kind: str):
    before = replaced(getattr(house, name), kind)
    async with asyncio.timeout(10):
        for _ in range(3):
            await house.gate.reload_if_changed()
    assert house.unusable == 1, "it is said once"
    assert house.passes(GET, get("top"), by("reports"))
    assert house.gate.unseen_s < 5

    put_back(getattr(house, name), before)
    house.rules.write_text(RULES.replace('"day-*"', '"day-*", "bottom"'))
    await house.gate.reload_if_changed()
    assert house.passes(GET, get("bottom"), by("reports"))


async def test_a_look_that_takes_too_long_is_told_of_and_ages(house: House, monkeypatch: pytest.MonkeyPatch):
    stalls = threading.Event()
    monkeypatch.setattr(gates, "RELOAD_INTERVAL_S", 0.01)
    monkeypatch.setattr(gates, "_LOOK_TAKES_MAX_S", 0.05)
    monkeypatch.setattr(house.gate._files, "have_changed", lambda: stalls.wait(60.0) and False)
    with capture_logs() as logged:
        watching = asyncio.create_task(house.gate.watch_files())
        await poll_until_async(lambda: any("can't be looked at" in each["event"] for each in logged), 10, "the line")
        assert house.gate.unseen_s > 0.05
        stalls.set()
        await poll_until_async(lambda: house.gate.unseen_s < 0.05, 10, "a look")
        watching.cancel()
