"""The identity of a caller, by what it has shown."""

from __future__ import annotations

import hashlib
import json
import math
import time
from pathlib import Path

import pytest

from statehouse.errors import LookupFailure, Reason
from statehouse.security.bearer_tokens import TOKEN_BYTES_MAX, JwtVerifier
from statehouse.security.certificates import NONE_REVOKED, facts_of, load, read_revoked
from statehouse.security.identities import KnownCaller, KnownCallers
from statehouse.security.rights import Right
from statehouse.security.rules import may
from statehouse.security.rules_file import parsed_rules
from statehouse.security.shown import NOTHING_SHOWN, Shown
from tests.support.bearer_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.support.certificates import Authority, Issued

STATIC = "correct-horse"
RULES = parsed_rules(
    f"""
    [[identity]]
    name = "reports"
    certificates = ["spiffe://house/reports"]
    jwt_subjects = ["reports@house"]
    roles = ["reader"]

    [[identity]]
    name = "ops"
    certificates = ["CN=both"]
    token_sha256 = ["{hashlib.sha256(STATIC.encode()).hexdigest()}"]
    roles = ["operator"]

    [anonymous]
    roles = ["health"]

    [jwt]
    keys = "jwks.json"
    algorithms = ["ES256"]
    issuer = "{ISSUER}"
    audience = "{AUDIENCE}"
    """.encode()
)
ISSUING = TokenIssuer()
assert RULES.jwt is not None
CALLERS = KnownCallers(RULES, JwtVerifier(RULES.jwt, json.dumps({"keys": ISSUING.keys()}).encode()), NONE_REVOKED)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


def identify(
    issued: Issued | None = None, authorization: str = "", callers: KnownCallers = CALLERS, after_s: float = 0.0
) -> KnownCaller:
    shown = Shown(b"" if issued is None else issued.der, authorization, "10.0.0.1:5")
    return callers.identify(shown, time.time() + after_s)


def refusal(
    issued: Issued | None = None, authorization: str = "", callers: KnownCallers = CALLERS, after_s: float = 0.0
) -> str:
    with pytest.raises(LookupFailure) as caught:
        identify(issued, authorization, callers, after_s)
    assert caught.value.reason is Reason.UNAUTHENTICATED
    return caught.value.message


def test_who_shows_nothing_is_anonymous():
    caller = CALLERS.identify(NOTHING_SHOWN, 0.0)
    assert (caller.name, caller.until) == ("anonymous", math.inf)
    assert {right for right in Right if may(caller.grants, right)} == {Right.HEALTH, Right.METRICS}


def test_by_a_certificate(authority: Authority):
    issued = authority.issue(["x"], ["spiffe://house/reports"], hours=2)
    caller = identify(issued)
    assert (caller.name, caller.until) == ("reports", facts_of(load(issued.der)).not_after)
    assert may(caller.grants, Right.LOOKUP, "top")


def test_several_entries_add_up(authority: Authority):
    caller = identify(authority.issue(["both"], ["spiffe://house/reports"]))
    assert caller.name == "reports+ops"
    assert may(caller.grants, Right.LOOKUP, "top")
    assert may(caller.grants, Right.DRAIN)


def test_a_certificate_that_is_not_named_is_refused_and_its_names_are_told(authority: Authority):
    found = refusal(authority.issue(["x"], ["spiffe://house/other"]))
    assert "spiffe://house/other, CN=x" in found
    assert len(refusal(authority.issue(["x"], ["spiffe://" + "y" * 5_000]))) < 300


def test_a_certificate_counts_while_it_holds(authority: Authority):
    issued = authority.issue(["both"], hours=2)
    assert "expired" in refusal(issued, after_s=7_300)
    assert "yet" in refusal(issued, after_s=-86_400)
    assert "expired" in refusal(authority.issue(["both"], expired=True))
    with pytest.raises(LookupFailure, match="can't be read"):
        CALLERS.identify(Shown(b"\x30\x00"), 0.0)


def test_a_revoked_certificate_is_refused_also_beside_a_token(authority: Authority):
    issued, other = authority.issue(["both"]), authority.issue(["both"])
    revoked = read_revoked(authority.crl([issued]).read_bytes(), authority.path.read_bytes())
    callers = KnownCallers(CALLERS.rules, CALLERS.jwt, revoked)
    assert "revoked" in refusal(issued, callers=callers)
    assert "revoked" in refusal(issued, f"Bearer {STATIC}", callers=callers)
    assert "revoked" in refusal(issued, callers=KnownCallers(None, None, revoked))
    assert identify(other, callers=callers).name == "ops"


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_by_a_static_token(scheme: str):
    assert identify(authorization=f"{scheme} {STATIC}") == KnownCaller(
        "ops", CALLERS.identify(Shown(authorization=f"Bearer {STATIC}"), 0.0).grants, math.inf
    )


def test_by_a_json_web_token():
    end = int(time.time()) + 60
    caller = identify(authorization=f"Bearer {ISSUING.token(exp=end)}")
    assert (caller.name, caller.until) == ("reports", end + 30)


def test_a_token_decides_even_beside_a_certificate(authority: Authority):
    issued = authority.issue(["x"], ["spiffe://house/reports"], hours=1)
    caller = identify(issued, f"Bearer {STATIC}")
    assert (caller.name, caller.until) == ("ops", facts_of(load(issued.der)).not_after)
    assert "no such token" in refusal(issued, "Bearer wrong-horse")


@pytest.mark.parametrize(
    ("authorization", "said"),
    [
        (STATIC, "Bearer TOKEN"),
        (f"Basic {STATIC}", "Bearer TOKEN"),
        ("Bearer", "Bearer TOKEN"),
        ("Bearer  ", "Bearer TOKEN"),
        (f"Bearer {STATIC}x", "no such token"),
        (f"Bearer {STATIC} {STATIC}", "no such token"),
        (f"Bearer {'x' * (TOKEN_BYTES_MAX + 1)}", "8 KiB"),
        (f"Bearer {ISSUING.token(sub='other@house')}", "no subject 'other@house'"),
        (f"Bearer {ISSUING.token(lasts_s=-100)}", "expired"),
        (f"Bearer {ISSUING.token(aud='other')}", "audience"),
    ],
)
def test_a_token_that_does_not_count_is_refused_and_not_repeated(authorization: str, said: str):
    found = refusal(authorization=authorization)
    assert said in found
    assert "horse" not in found
    assert "eyJ" not in found


def test_without_jwt_rules_only_static_tokens_count():
    callers = KnownCallers(CALLERS.rules, None, NONE_REVOKED)
    assert "no such token" in refusal(authorization=f"Bearer {ISSUING.token()}", callers=callers)


def test_without_rules_everybody_may_do_everything(authority: Authority):
    callers = KnownCallers(None, None, NONE_REVOKED)
    caller = identify(callers=callers, authorization="Bearer nonsense")
    assert caller.name == "anybody"
    assert all(may(caller.grants, right, "any") for right in Right)
    assert "expired" in refusal(authority.issue(["x"], expired=True), callers=callers)


def test_what_was_shown_hides_its_secret_when_it_is_printed():
    assert STATIC not in repr(Shown(authorization=f"Bearer {STATIC}"))
