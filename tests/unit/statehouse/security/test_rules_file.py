"""The rules file: what it says, and that each mistake is named without repeating a secret."""

from __future__ import annotations

import hashlib
import re

import pytest

from statehouse.errors import ConfigurationError
from statehouse.security.rights import Right
from statehouse.security.rules import JwtRules, grants_of, may
from statehouse.security.rules_file import IDENTITIES_MAX, RULES_BYTES_MAX, TOKENS_MAX, parsed_rules

HASH = hashlib.sha256(b"secret").hexdigest()
JWT = """
[jwt]
keys = "jwks.json"
algorithms = ["RS256", "ES256"]
issuer = "https://issuer.house"
audience = "statehouse"
"""
SOMEBODY = f'[[identity]]\nname = "reports"\ntoken_sha256 = ["{HASH}"]\n'
READER = SOMEBODY + 'roles = ["reader"]\n'


def problem(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parsed_rules(text.encode())
    return str(caught.value)


def test_a_whole_file():
    rules = parsed_rules(
        f"""
        [[identity]]
        name = "reports"
        certificates = ["spiffe://house/reports", "CN=re\\\\2Cports,O=House"]
        token_sha256 = ["{HASH}"]
        jwt_subjects = ["reports@house"]
        roles = ["reader"]
        stores = ["leaderboard", "top-*"]
        only = ["lookup", "scan"]
        also = ["fleet"]

        [[identity]]
        name = "ops"
        certificates = ["spiffe://house/reports"]
        roles = ["operator"]

        [anonymous]
        roles = ["health"]

        [jwt]
        keys = "jwks.json"
        algorithms = ["RS256"]
        issuer = "https://issuer.house"
        audience = "statehouse"
        """.encode()
    )
    assert {name: [each.name for each in entries] for name, entries in rules.certificates.items()} == {
        "spiffe://house/reports": ["reports", "ops"],
        r"CN=re\,ports,O=House": ["reports"],
    }
    ((digest, entry),) = rules.tokens
    assert (digest, entry.name) == (hashlib.sha256(b"secret").digest(), "reports")
    assert {right for right in Right if may(entry.grants, right, "top-1")} == {"lookup", "scan", "fleet", "health"}
    assert not may(entry.grants, Right.LOOKUP, "bottom")
    assert rules.subjects.keys() == {"reports@house"}
    assert {right for right in Right if may(rules.anonymous, right)} == {"health", "metrics"}
    assert rules.jwt == JwtRules("jwks.json", ("RS256",), "https://issuer.house", "statehouse", 30)


def test_without_anonymous_who_shows_nothing_may_do_nothing():
    assert parsed_rules(READER.encode()).anonymous == ()
    assert parsed_rules(b'[anonymous]\nroles = ["reader"]\n').anonymous == grants_of(["reader"])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"lets nobody do anything"),
        ("[[identity", r"no TOML"),
        ("a = " + "[" * 5_000, r"no TOML"),
        ("identity = 3", r"\[identity\]"),
        ("identity = [3]", r"identity 1: Input should be"),
        (READER + "[other]\n", r"\[other\]: there is no such key"),
        (READER + 'rules = ["reader"]\n', r'identity 1 "reports": rules: there is no such key'),
        (SOMEBODY, r'identity 1 "reports": roles: Field required'),
        (SOMEBODY + "roles = []", r"roles: the list is empty"),
        (
            SOMEBODY + 'roles = ["king"]',
            r"roles: Input should be 'reader', 'operator', 'router', 'node', 'health' or 'processor'",
        ),
        (READER + '[[identity]]\nname = "b c"\n', r"identity 2: name: take 1 to 128 letters"),
        (READER.replace("reports", "unknown"), r"none of anonymous, anybody, unknown"),
        ('[[identity]]\nname = "a"\nroles = ["reader"]', r'identity 1 "a": nobody can be this: give certificates'),
        (READER + READER, r'two identities have the name "reports"'),
        (READER + "stores = []", r"stores: the list is empty"),
        (READER + 'stores = [""]', r"stores: a store's name"),
        (READER + 'stores = ["a?"]', r"stores: a store's name"),
        (READER + 'only = ["drain"]', r"only: Input should be 'lookup', 'scan', 'watch' or 'query'"),
        (READER + 'also = ["drain"]', r"also: Input should be 'fleet'"),
        (SOMEBODY + 'roles = ["operator"]\nstores = ["a"]', r"stores belongs to the role reader"),
        (SOMEBODY + 'roles = ["operator"]\nalso = ["fleet"]', r"also belongs to the role reader"),
        (SOMEBODY + 'roles = ["router"]\nalso = ["fleet", "act-for"]', r"also belongs to the role reader"),
        (SOMEBODY + 'roles = ["reader"]\nalso = ["fleet", "act-for"]', r'"act-for"\] belongs to the role router'),
        (READER.replace(HASH, "secret"), r"token_sha256: write the token's SHA-256"),
        (READER.replace(HASH, HASH.upper()), r"64 small hexadecimal digits"),
        (READER + 'certificates = ["reports"]', r"certificates: name a certificate by a URI"),
        (READER + 'jwt_subjects = ["a"]', r'identity "reports" has jwt_subjects: say in \[jwt\]'),
        (READER + 'jwt_subjects = [""]\n' + JWT, r"jwt_subjects: it is empty"),
        (READER + JWT.replace("RS256", "HS256"), r"\[jwt\]: algorithms: Input should be 'RS256'"),
        (READER + JWT.replace("RS256", "none"), r"\[jwt\]: algorithms"),
        (READER + JWT.replace('"RS256", "ES256"', ""), r"\[jwt\]: algorithms: the list is empty"),
        (READER + JWT.replace("issuer =", "iss ="), r"\[jwt\]: issuer: Field required"),
        (READER + JWT + "leeway_s = 301", r"\[jwt\]: leeway_s: .* 300"),
        (READER + JWT + "leeway_s = true", r"\[jwt\]: leeway_s"),
    ],
)
def test_a_mistake_is_named(text: str, said: str):
    found = problem(text)
    assert re.search(said, found), found
    assert "secret" not in found.replace("is a secret", "")


def test_sizes_are_bounded():
    assert "MiB" in problem("#" * (RULES_BYTES_MAX + 1))
    assert str(IDENTITIES_MAX) in problem("identity = [" + "{}," * (IDENTITIES_MAX + 1) + "]")
    many = "".join(
        READER.replace("reports", f"r{n}").replace(f'"{HASH}"', f'"{HASH}",' * 500)
        for n in range(TOKENS_MAX // 500 + 1)
    )
    assert str(TOKENS_MAX) in problem(many)


def test_a_thousand_and_more_names_in_a_list_are_too_many():
    assert "stores" in problem(READER + "stores = [" + '"a",' * 1_001 + "]")
