"""The rights of callers, against an oracle that is written plainly: calls by generated identities and rules.

The calls are those of the table of rights, so that none is left out; what each needs, the oracle has from the
documentation.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.errors import LookupFailure, Reason
from statehouse.security.gate import Gate
from statehouse.security.rights import RIGHTS, stores_asked
from statehouse.security.rules import matches
from statehouse.security.shown import Shown
from statehouse.serdes.wire import framed
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2
from tests.support.bearer_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.support.certificates import Authority
from tests.support.service_modules import SERVICE_MODULES

CALLS_A_FILE: Final = 1_000
STORES: Final = ("top", "day-1", "day-2", "daily", "a.b", "ab", "")
PATTERNS: Final = ("*", "top", "day-*", "da*", "*-1", "*a*", "a.b", "d*y*1", "nothing")
ROLES: Final = ("reader", "operator", "router", "node", "health")
LISTS: Final = {"only": ("lookup", "scan", "watch", "query"), "also": ("fleet",)}
QUERY: Final = "/statehouse.v1.QueryService/"
# What the documentation says each call needs, by the names of the calls.
_NEEDED: Final = {
    "lookup": "Get BatchGet FetchWindows FetchSessions GetAsOf GetHistory ExplainGet AwaitInput LocateKey",
    "scan": "Scan ScanWindows ScanSessions Count",
    "watch": "Watch",
    "query": "QueryStore",
    "fleet": "GetFleet WatchFleet ListStores ListNodes ListPartitions ListChangelogs GetMoment GetNode",
    "drain": "Drain",
    "profile": "Profile",
    "verify": "SumStore",
    "restore": "RestoreReplica",
    "files": "OfferStore ReadFile",
    "metrics": "metrics",
    "nothing that anybody has": "Steal",
}
_NEEDS: Final = {name: kind for kind, names in _NEEDED.items() for name in names.split()}
UNKNOWN: Final = f"{QUERY}Steal"
METHODS: Final = (*RIGHTS, UNKNOWN)
REQUESTS: Final[Mapping[str, type[Any]]] = {
    f"/{service.full_name}/{method.name}": method.input_type._concrete_class
    for module in SERVICE_MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
# Callers can show five certificates of each kind, and four tokens and subjects; files name some of them.
SUBJECTS: Final = [f"CN=c{number}" for number in range(5)]
TOKENS: Final = [f"t{number}" for number in range(4)]
JWT_SUBJECTS: Final = [f"s{number}@house" for number in range(4)]
SHOWN: Final = (*[(True, False)] * 4, *[(False, True)] * 4, (True, True), (False, False))
"""Whether callers show a certificate, and whether a token."""
SCHEMES: Final = ("Bearer", "bearer")
HOLD: Final = frozenset({"good", "brief", "token", "JWT"})
"""Kinds of what callers show that hold, the brief at first."""
A_DAY_S: Final = 86_400.0


def kind_of(method: str) -> str:
    """Return the right that the documentation has for a call."""
    if method.startswith("/grpc.health."):
        return "health"
    return "reflection" if method.startswith("/grpc.reflection.") else _NEEDS[method.rpartition("/")[2]]


def part_about(request: Any) -> Any:
    """Return the part of a request that names the store and says who has sent it on, where it isn't a batch."""
    return request.lookup if isinstance(request, fleet_service_pb2.ExplainGetRequest) else request


def can_be_sent_on(method: str) -> bool:
    """Return whether requests of a method say that a router has sent them on."""
    if method not in REQUESTS or method.endswith("/BatchGet"):
        return method.endswith("/BatchGet")
    return "forwarding" in part_about(REQUESTS[method]()).DESCRIPTOR.fields_by_name


SENT_ON: Final = frozenset(method for method in METHODS if can_be_sent_on(method))


@dataclass
class Person:
    """An identity of the rules file, as its keys and values; or callers that show nothing."""

    name: str
    keys: dict[str, list[str]] = field(default_factory=dict)

    def toml(self) -> str:
        head = ["[anonymous]"] if self.name == "anonymous" else ["[[identity]]", f'name = "{self.name}"']
        return "\n".join([*head, *(f"{key} = {json.dumps(value)}" for key, value in self.keys.items()), ""])


@dataclass
class RulesFile:
    """The identities in a rules file."""

    people: list[Person]
    anonymous: Person | None
    has_jwt: bool

    def toml(self) -> str:
        everybody = self.people if self.anonymous is None else [*self.people, self.anonymous]
        jwt = f'[jwt]\nkeys = "jwks.json"\nalgorithms = ["ES256"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
        return "".join(person.toml() for person in everybody) + (jwt if self.has_jwt else "")

    def named(self, key: str, name: str) -> list[Person]:
        return [person for person in self.people if name in person.keys.get(key, ())]


@dataclass(frozen=True)
class Certificate:
    """A certificate. `kind`: good, expired, revoked, or brief: it ends amid the calls of a file."""

    kind: str
    subject: str
    der: bytes = field(repr=False)

    def holds(self, *, is_later: bool) -> bool:
        return self.kind == "good" or (self.kind == "brief" and not is_later)


@dataclass(frozen=True)
class Token:
    """What stands in `authorization`. `key`, `name`: how a file names whose it is; empty if it is nobody's."""

    kind: str
    authorization: str = field(repr=False)
    key: str = ""
    name: str = ""


Card = TypeVar("Card", Certificate, Token)


@dataclass(frozen=True)
class Caller:
    """A caller that shows a certificate, a token, both or nothing."""

    certificate: Certificate | None
    token: Token | None

    @property
    def kind(self) -> str:
        return ", ".join(each.kind for each in (self.certificate, self.token) if each is not None) or "anonymous"

    def shown(self) -> Shown:
        certificate = b"" if self.certificate is None else self.certificate.der
        return Shown(certificate, "" if self.token is None else self.token.authorization, "a")


@dataclass
class Clock:
    """Epoch seconds, as the gate has them."""

    now: float

    def __call__(self) -> float:
        return self.now


@dataclass
class Asking:
    """A call: what it is and what it is about. `is_readable`: whether its request can be read."""

    method: str
    stores: list[str]
    hops: int
    is_readable: bool

    def request(self, rng: random.Random) -> object:
        if not self.is_readable:
            return rng.choice((b"\xff", None))
        if self.method not in REQUESTS:
            return rng.choice((b"", None))
        message = REQUESTS[self.method]()
        about = part_about(message)
        if self.method.endswith("/BatchGet"):
            gets = [message.requests.add(store=store) for store in self.stores]
            about = rng.choice(gets) if gets else None
        elif "store" in about.DESCRIPTOR.fields_by_name:
            about.store = self.stores[0]
        if about is not None and self.method in SENT_ON:
            about.forwarding.CopyFrom(types_pb2.Forwarding(epoch=rng.randrange(9), hops=self.hops))
        return message if rng.random() < 0.3 else message.SerializeToString()


def expected(file: RulesFile, asking: Asking, caller: Caller, *, is_later: bool) -> str:
    """Return what the documentation says becomes of a call."""
    certificate, token = caller.certificate, caller.token
    if certificate is not None and not certificate.holds(is_later=is_later):
        return Reason.UNAUTHENTICATED.name
    if token is None and certificate is None:
        is_allowed = file.anonymous is not None and oracle([file.anonymous], asking)
        return "ALLOWED" if is_allowed else Reason.UNAUTHENTICATED.name
    who = []
    if token is not None:  # it decides
        who = file.named(token.key, token.name)
    elif certificate is not None:
        who = file.named("certificates", certificate.subject)
    if not who:
        return Reason.UNAUTHENTICATED.name
    return "ALLOWED" if oracle(who, asking) else Reason.PERMISSION_DENIED.name


def oracle(who: list[Person], asking: Asking) -> bool:
    """Whether these identities together may do that, as the documentation has it, one sentence after the other."""
    kind = kind_of(asking.method)
    roles = {role for person in who for role in person.keys["roles"]}
    if asking.hops > 0 and "router" not in roles:
        return False
    if kind in {"lookup", "scan", "watch", "query"}:
        if "router" in roles:
            return True
        readers = [p for p in who if "reader" in p.keys["roles"] and kind in p.keys.get("only", LISTS["only"])]
        stores = asking.stores if asking.is_readable else []  # what can't be read is refused by who would answer it
        if asking.method.endswith("/LocateKey") and stores == [""]:
            stores = []
        return bool(readers) and all(any(reads(person, store) for person in readers) for store in stores)
    if kind == "fleet":
        follows = any("fleet" in person.keys.get("also", ()) for person in who)
        return follows or bool(roles & {"operator", "router", "node"})
    allowed_to = {
        "drain": {"operator"},
        "profile": {"operator"},
        "verify": {"operator", "router"},
        "restore": {"operator"},
        "files": {"node"},
        "reflection": {"operator"},
        "metrics": {"operator", "health"},
    }
    return bool(roles & allowed_to.get(kind, set())) or (kind == "health" and bool(roles))


def reads(person: Person, store: str) -> bool:
    patterns = person.keys.get("stores", ["*"])
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), store) is not None for pattern in patterns)


def some(rng: random.Random, of: Sequence[str]) -> list[str]:
    return rng.sample(of, rng.randint(1, min(3, len(of))))


def drawn_grants(rng: random.Random) -> dict[str, list[str]]:
    keys = {"roles": some(rng, ROLES)}
    if "reader" in keys["roles"]:
        if rng.random() < 0.7:
            keys["stores"] = some(rng, PATTERNS)
        for name, values in LISTS.items():
            if rng.random() < 0.5:
                keys[name] = some(rng, values)
    return keys


def drawn_person(rng: random.Random, number: int, *, has_jwt: bool) -> Person:
    names = {"certificates": SUBJECTS, "token_sha256": [hash_of(token) for token in TOKENS]}
    if has_jwt:
        names["jwt_subjects"] = JWT_SUBJECTS
    keys = {key: some(rng, of) for key, of in names.items() if rng.random() < 0.6}
    return Person(f"p{number}", drawn_grants(rng) | (keys or {"certificates": some(rng, SUBJECTS)}))


def drawn_file(rng: random.Random) -> RulesFile:
    has_jwt = rng.random() < 0.8
    people = [drawn_person(rng, number, has_jwt=has_jwt) for number in range(rng.randint(1, 8))]
    return RulesFile(people, Person("anonymous", drawn_grants(rng)) if rng.random() < 0.6 else None, has_jwt)


def drawn_call(rng: random.Random) -> Asking:
    method, is_readable = rng.choice(METHODS), rng.random() < 0.97
    stores = [rng.choice(STORES) for _ in range(rng.randint(0, 3) if method.endswith("/BatchGet") else 1)]
    is_sent_on = is_readable and bool(stores) and method in SENT_ON
    return Asking(method, stores, rng.choice((0, 0, 0, 1, 2)) if is_sent_on else 0, is_readable)


def drawn_caller(rng: random.Random, certificates: list[Certificate], tokens: list[Token]) -> Caller:
    shows_certificate, shows_token = rng.choice(SHOWN)
    return Caller(rng.choice(certificates) if shows_certificate else None, rng.choice(tokens) if shows_token else None)


def mostly_good(cards: list[Card]) -> list[Card]:
    """Return them, each that holds three times more."""
    return cards + 3 * [card for card in cards if card.kind in HOLD]


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def certificates(authority: Authority) -> tuple[list[Certificate], Path]:
    """Return certificates of each kind, and the list of those that are revoked."""
    names = [subject.removeprefix("CN=") for subject in SUBJECTS]
    issued = {
        "good": [authority.issue([name]) for name in names],
        "brief": [authority.issue([name], hours=1.0) for name in names],
        "expired": [authority.issue([name], expired=True) for name in names],
        "revoked": [authority.issue([name]) for name in names],
    }
    found = [
        Certificate(kind, subject, each.der)
        for kind, of_kind in issued.items()
        for subject, each in zip(SUBJECTS, of_kind, strict=True)
    ]
    return found, authority.crl(issued["revoked"])


def tokens(issuer: TokenIssuer, stranger: TokenIssuer) -> list[Token]:
    """Return what may stand in `authorization`: tokens of each kind, and what is none."""
    found = [Token("token", f"{how} {text}", "token_sha256", hash_of(text)) for text in TOKENS for how in SCHEMES]
    for subject in JWT_SUBJECTS:
        good = issuer.token(sub=subject, lasts_s=A_DAY_S)
        bad = {
            "expired JWT": issuer.token(sub=subject, lasts_s=-A_DAY_S),
            "JWT for others": issuer.token(sub=subject, lasts_s=A_DAY_S, aud="others"),
            "JWT without an end": issuer.token(sub=subject, exp=None),
            "forged JWT": stranger.token(sub=subject, lasts_s=A_DAY_S),
        }
        found.append(Token("JWT", f"Bearer {good}", "jwt_subjects", subject))
        found += [Token(kind, f"Bearer {text}") for kind, text in bad.items()]
    nobodys = {"unknown token": "t-unknown", "unknown JWT": issuer.token(sub="s-unknown@house", lasts_s=A_DAY_S)}
    found += [Token(kind, f"Bearer {text}") for kind, text in nobodys.items()]
    return found + [Token("no token", text) for text in ("Bearer", f"Bearer  {TOKENS[0]}", f"Basic {TOKENS[0]}")]


def outcome(gate: Gate, asking: Asking, caller: Caller, rng: random.Random) -> str:
    try:
        gate.admit(asking.method, asking.request(rng), caller.shown())
    except LookupFailure as failure:
        return failure.reason.name
    return "ALLOWED"


@pytest.mark.feature("identities-certificates-tokens")
@pytest.mark.parametrize("files", [60, pytest.param(100, marks=pytest.mark.long)])
def test_the_gate_decides_as_the_documentation_says(tmp_path: Path, files: int) -> None:
    calls = files * CALLS_A_FILE
    rng = random.Random(20_261)
    authority, issuer = Authority(tmp_path, "ca"), TokenIssuer()
    issuer.write_keys(tmp_path / "jwks.json")
    path = tmp_path / "rules.toml"
    issued, crl = certificates(authority)
    all_certificates, all_tokens = mostly_good(issued), mostly_good(tokens(issuer, TokenIssuer()))
    began_at = time.time()
    counts: Counter[str] = Counter()
    by_method: Counter[tuple[str, str]] = Counter()
    by_caller: Counter[tuple[str, str]] = Counter()
    for _ in range(files):
        file, clock = drawn_file(rng), Clock(began_at)
        path.write_text(file.toml())
        gate = Gate(path, authority.path, crl, on_denied=lambda _: None, on_unusable=lambda: None, clock=clock)
        for number in range(CALLS_A_FILE):
            is_later = number >= CALLS_A_FILE // 2
            clock.now = began_at + 7_200.0 * is_later
            caller, asking = drawn_caller(rng, all_certificates, all_tokens), drawn_call(rng)
            found = outcome(gate, asking, caller, rng)
            assert found == expected(file, asking, caller, is_later=is_later), (file, asking, caller, is_later)
            counts[found] += 1
            by_method[asking.method, found] += 1
            by_caller[caller.kind, found] += 1
    assert counts.total() == calls
    assert min(counts[name] for name in ("ALLOWED", "PERMISSION_DENIED", "UNAUTHENTICATED")) > calls // 11
    # Each call has been allowed and refused, and each kind of caller that can be known has made calls.
    for method in METHODS:
        assert (by_method[method, "ALLOWED"] > calls // 2_500) == (method != UNKNOWN), method
        # Any known caller may ask for health.
        assert (by_method[method, "PERMISSION_DENIED"] > calls // 2_500) == (kind_of(method) != "health"), method
    for kind in ("anonymous", "good", "brief", "token", "JWT", "good, JWT", "brief, token"):
        assert by_caller[kind, "ALLOWED"] > calls // 1_000, kind
    for kind in ("expired", "revoked", "expired JWT", "JWT for others", "JWT without an end", "forged JWT", "no token"):
        assert by_caller[kind, "UNAUTHENTICATED"] > calls // 1_000, kind
        assert by_caller[kind, "ALLOWED"] == 0


@given(st.text("ab*", max_size=8), st.text("ab", max_size=8))
def test_patterns_mean_what_their_stars_say(pattern: str, name: str) -> None:
    regular = ".*".join(map(re.escape, pattern.split("*")))
    assert matches(pattern, name) == (re.fullmatch(regular, name) is not None)


@given(
    st.lists(
        st.binary(max_size=12)
        | st.sampled_from(STORES).map(lambda s: query_service_pb2.GetRequest(store=s).SerializeToString())
    )
)
def test_a_batch_asks_for_what_each_of_its_readable_entries_asks_for(entries: list[bytes]) -> None:
    alone = [stores_asked(f"{QUERY}Get", entry) for entry in entries]
    together = stores_asked(f"{QUERY}BatchGet", framed(entries))
    assert together.stores == {store for each in alone for store in each.stores}
    assert together.forwarded == any(each.forwarded for each in alone)


@given(st.sampled_from([method for method in METHODS if method.startswith("/")]), st.binary(max_size=200))
def test_any_bytes_are_read_or_name_no_store(method: str, data: bytes) -> None:
    assert all(isinstance(store, str) for store in stores_asked(method, data).stores)
