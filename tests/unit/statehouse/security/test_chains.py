"""Whether a certificate leads to a CA of ours now: what of a chain counts, and what makes it count for nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from statehouse.security.certificates import (
    NONE_REVOKED,
    SHOWN_MAX,
    Revoked,
    facts_of,
    first_of_chain,
    read_anchors,
    read_chain,
)
from statehouse.security.chains import ChainVerifier, NoChain

NOW: Final = datetime(2030, 6, 1, tzinfo=UTC)
DAY: Final = timedelta(days=1)


@dataclass
class Made:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def made(
    name: str,
    by: Made | None = None,
    *,
    ca: bool = True,
    path_length: int | None = None,
    begins: datetime = NOW - DAY,
    ends: datetime = NOW + 10 * DAY,
    usages: Sequence[x509.ObjectIdentifier] = (),
    signs: bool | None = None,
    more: Sequence[tuple[x509.ExtensionType, bool]] = (),
    basic: bool = True,
) -> Made:
    """Return a certificate that `by` has signed, or itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )
    extensions: list[tuple[x509.ExtensionType, bool]] = list(more)
    if basic:
        extensions.append((x509.BasicConstraints(ca, path_length if ca else None), True))
    if usages:
        extensions.append((x509.ExtendedKeyUsage(usages), False))
    if signs is not None:
        off = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        usage = x509.KeyUsage(digital_signature=True, key_cert_sign=signs, crl_sign=False, decipher_only=False, **off)
        extensions.append((usage, True))
    for extension, is_critical in extensions:
        builder = builder.add_extension(extension, is_critical)
    return Made(builder.sign((key if by is None else by.key), SHA256()), key)


def until(
    shown: Sequence[Made],
    *anchors: Made,
    revoked: Revoked = NONE_REVOKED,
    is_verified: bool = False,
    now: datetime = NOW,
) -> datetime:
    read = read_chain(b"".join(each.der for each in shown))
    known = read_anchors(b"".join(each.pem for each in anchors))
    search = ChainVerifier(known, revoked, now.timestamp(), is_verified=is_verified)
    return datetime.fromtimestamp(search.until(read), UTC)


def why(shown: Sequence[Made], *anchors: Made, **given: Any) -> str:
    with pytest.raises(NoChain) as caught:
        until(shown, *anchors, **given)
    return str(caught.value)


ROOT: Final = made("root", signs=True)
MIDDLE: Final = made("middle", ROOT, path_length=1)
LOWER: Final = made("lower", MIDDLE, path_length=0)
LEAF: Final = made("caller", LOWER, ca=False, usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
DIRECT: Final = made("caller", ROOT, ca=False)


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_chain_leads_over_what_was_shown_and_what_is_in_tls_ca(*, is_verified: bool) -> None:
    assert until([DIRECT], ROOT, is_verified=is_verified) == NOW + 10 * DAY
    assert until([LEAF, LOWER, MIDDLE], ROOT, is_verified=is_verified)
    assert until([LEAF, made("stray"), MIDDLE, DIRECT, LOWER, ROOT], ROOT, is_verified=is_verified)
    assert until([LEAF], LOWER, is_verified=is_verified), "as in Go: whatever is in tls_ca is trusted"
    assert until([LEAF, LOWER], ROOT, MIDDLE, is_verified=is_verified)
    assert until([DIRECT], DIRECT, is_verified=is_verified), "the caller's own is in tls_ca"


def test_a_chain_ends_with_the_first_that_ends() -> None:
    middle = made("middle", ROOT, ends=NOW + 2 * DAY)
    assert until([made("caller", middle, ca=False), middle], ROOT) == NOW + 2 * DAY
    root = made("root", ends=NOW + DAY)
    assert until([made("caller", root, ca=False)], root) == NOW + DAY


def test_of_two_ways_the_one_that_holds_counts() -> None:
    """A CA was certified anew, with the same key and name."""
    again = made("middle", ROOT)
    old = Made(made("middle", ROOT, ends=NOW - timedelta(hours=1)).certificate, again.key)
    leaf = made("caller", again, ca=False)
    assert until([leaf, old, again], ROOT)
    assert until([leaf, again, old], ROOT)


@pytest.mark.parametrize("is_verified", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("own CA of our CA's name", "has signed it"),
        ("signed by itself", "has signed it"),
        ("nothing between", "has signed it"),
        ("another CA", "has signed it"),
        ("a caller's certificate as a CA's", "is no CA's"),
        ("no constraints in between", "is no CA's"),
        ("may not sign", "is no CA's"),
        ("too long for one between", "is no CA's"),
        ("too long for the root", "is no CA's"),
        ("the root is a caller's", "is no CA's"),
        ("one between has ended", "is over"),
        ("one between begins later", "hasn't begun"),
        ("the root has ended", "is over"),
        ("it has ended itself", "is over"),
        ("for servers only", "not for clients"),
        ("one between is for servers only", "not for clients"),
    ],
)
def test_what_does_not_count(kind: str, said: str, *, is_verified: bool) -> None:
    caller, fake = {"ca": False}, made("root", signs=True)
    server = [ExtendedKeyUsageOID.SERVER_AUTH]
    over, later, loose = (
        made("middle", ROOT, ends=NOW - timedelta(hours=1)),
        made("middle", ROOT, begins=NOW + timedelta(hours=1)),
        made("middle", ROOT, basic=False),
    )
    short, ended = made("root", path_length=0), made("root", ends=NOW - timedelta(hours=1))
    below, mute = made("lower", made("middle", short)), made("middle", ROOT, signs=False)
    long = made("lowest", LOWER)
    for_servers = made("middle", ROOT, usages=server)
    chains: dict[str, tuple[list[Made], list[Made]]] = {
        "own CA of our CA's name": ([made("caller", fake, **caller), fake], [ROOT]),
        "signed by itself": ([made("caller", **caller)], [ROOT]),
        "nothing between": ([LEAF, MIDDLE], [ROOT]),
        "another CA": ([made("caller", made("other"), **caller)], [ROOT]),
        "a caller's certificate as a CA's": ([made("boss", DIRECT, **caller), DIRECT], [ROOT]),
        "no constraints in between": ([made("caller", loose, **caller), loose], [ROOT]),
        "may not sign": ([made("caller", mute, **caller), mute], [ROOT]),
        "too long for one between": ([made("caller", long, **caller), long, LOWER, MIDDLE], [ROOT]),
        "too long for the root": ([made("caller", below, **caller), below, made("middle", short)], [short]),
        "the root is a caller's": ([made("boss", DIRECT, **caller)], [DIRECT]),
        "one between has ended": ([made("caller", over, **caller), over], [ROOT]),
        "one between begins later": ([made("caller", later, **caller), later], [ROOT]),
        "the root has ended": ([made("caller", ended, **caller)], [ended]),
        "it has ended itself": ([made("caller", ROOT, ends=NOW - timedelta(hours=1), **caller)], [ROOT]),
        "for servers only": ([made("caller", ROOT, usages=server, **caller)], [ROOT]),
        "one between is for servers only": ([made("caller", for_servers, **caller), for_servers], [ROOT]),
    }
    if kind == "too long for the root":
        middle = made("middle", short)
        lower = made("lower", middle)
        chains[kind] = ([made("caller", lower, **caller), lower, middle], [short])
    shown, anchors = chains[kind]
    assert said in why(shown, *anchors, is_verified=is_verified)


@pytest.mark.parametrize("where", range(3))
def test_one_that_was_revoked_ends_the_chain(where: int) -> None:
    shown = [LEAF, LOWER, MIDDLE]
    bad = shown[where].certificate
    assert "revoked" in why(shown, ROOT, revoked=Revoked({bad.issuer: frozenset([bad.serial_number])}))
    assert until(shown, ROOT, revoked=Revoked({ROOT.certificate.subject: frozenset([1])}))


def test_what_is_not_understood_counts_only_if_a_handshake_has_verified_it() -> None:
    names = x509.NameConstraints([x509.DNSName("house")], None)
    middle = made("middle", ROOT, more=[(names, True)])
    leaf = made("caller", middle, ca=False)
    assert "isn't understood" in why([leaf, middle], ROOT)
    assert "isn't understood" in why([made("caller", root := made("r", more=[(names, True)]), ca=False)], root)
    assert until([leaf, middle], ROOT, is_verified=True)


def test_what_a_chain_costs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = [made("middle", ROOT) for _ in range(SHOWN_MAX)]
    assert len(read_chain(b"".join(each.der for each in [LEAF, *many]))) == SHOWN_MAX
    # Anchors of one name; none of them has signed it.
    monkeypatch.setattr("statehouse.security.chains._SIGNATURES_MAX", 3)
    search = ChainVerifier(
        read_anchors(b"".join(made("root").pem for _ in range(9))), NONE_REVOKED, NOW.timestamp(), is_verified=False
    )
    with pytest.raises(NoChain):
        search.until([DIRECT.certificate])
    assert search._signatures == 3


def test_certificates_stand_one_after_another() -> None:
    both = DIRECT.der + LEAF.der
    assert read_chain(both) == [DIRECT.certificate, LEAF.certificate]
    assert first_of_chain(both) == first_of_chain(DIRECT.der) == DIRECT.der
    for rubbish in (b"", b"\0", b"0", b"\x30\x80", DIRECT.der[:-1], DIRECT.der + b"x", b"\x30\x84\xff\xff\xff\xff"):
        with pytest.raises(ValueError, match="can't be read"):
            read_chain(rubbish)
        first_of_chain(rubbish)


def altered(der: bytes, rng: random.Random) -> bytes:
    """Return a certificate in which a few bytes are others, or others of its own."""
    changed = bytearray(der)
    for _ in range(rng.randint(1, 3)):
        at, other, length = (rng.randrange(len(changed) - 8) for _ in range(2)), rng.randrange(256), rng.randint(1, 8)
        here, there = at
        if rng.random() < 0.3:
            changed[here : here + length] = changed[there : there + length]
        else:
            changed[here] = rng.choice((other, changed[here] ^ (1 << other % 8)))
    return bytes(changed)


def swapped(old: str, new: str) -> bytes:
    """Return a certificate with many extensions, in which one thing is another."""
    names = x509.SubjectAlternativeName([x509.DNSName("aaa"), x509.UniformResourceIdentifier("statehouse://tests/a")])
    of_keys = x509.SubjectKeyIdentifier(b"k")
    der = made(
        "leaf", ROOT, ca=False, usages=[ExtendedKeyUsageOID.CLIENT_AUTH], more=[(names, False), (of_keys, False)]
    ).der
    assert bytes.fromhex(old) in der
    return der.replace(bytes.fromhex(old), bytes.fromhex(new))


UNREADABLE: Final = {
    "no version": swapped("a003020102", "a003020105"),
    "an extension twice": swapped("0603551d0e", "0603551d11"),
    "a name of an unknown kind": swapped("8203616161", "8303616161"),
    "another form": swapped("8203616161", "a003616161"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_the_library_cannot_read_is_no_certificate(what: str) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        facts_of(read_chain(UNREADABLE[what])[0])


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_changed_bytes_never_make_another_caller() -> None:
    rng = random.Random(7)
    for _ in range(3_000):
        try:
            read = read_chain(altered(DIRECT.der, rng))
            facts_of(read[0])
        except ValueError:
            continue
        if read[0] != DIRECT.certificate:
            with pytest.raises(NoChain):
                ChainVerifier(read_anchors(ROOT.pem), NONE_REVOKED, NOW.timestamp(), is_verified=False).until(read)
