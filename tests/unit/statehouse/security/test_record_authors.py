"""Records of control topics have an author: who may write which, and what an attacker can't do with a record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from statehouse.contract.versions import VERSIONS_KEY
from statehouse.control.v1 import signatures_pb2
from statehouse.errors import ConfigurationError, ContractError
from statehouse.security.certificates import NONE_REVOKED, read_anchors, read_revoked
from statehouse.security.record_authors import ASSIGNMENT, COMMITS, MEMBERS, Authority, RecordJudge
from statehouse.security.record_signatures import RUN_BYTES, ControlRecord, RecordSigner
from statehouse.security.rules_file import parsed_rules
from tests.support.certificates import Authority as Ca
from tests.support.certificates import Issued

NOW: Final = time.time()
MEMBER: Final = ControlRecord("app-statehouse-members", b"n1", b"heartbeat")
RULES: Final = """
[[identity]]
name = "nodes"
certificates = ["statehouse://tests/node"]
roles = ["node"]

[[identity]]
name = "n7"
certificates = ["statehouse://tests/n7"]
roles = ["node"]
instances = ["n7", "n7-*"]

[[identity]]
name = "router"
certificates = ["statehouse://tests/router"]
roles = ["router"]

[[identity]]
name = "operator"
certificates = ["statehouse://tests/operator"]
roles = ["operator"]
"""
PROCESSOR: Final = """
[[identity]]
name = "driver"
certificates = ["statehouse://tests/processor"]
roles = ["processor"]
"""


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Ca:
    return Ca(tmp_path_factory.mktemp("ca"), "house")


def signer(issued: Issued, run: bytes = b"a run..1") -> RecordSigner:
    return RecordSigner(issued.certificate_path.read_bytes(), issued.key_path.read_bytes(), run)


def named(ca: Ca, name: str, **how: Any) -> Issued:
    return ca.issue(("localhost",), (f"statehouse://tests/{name}",), **how)


def judge(ca: Ca, kind: str = MEMBERS, rules: str = "", *, is_required: bool = False) -> RecordJudge:
    parsed = parsed_rules(rules.encode()) if rules else None
    authority = Authority(read_anchors(ca.path.read_bytes()), NONE_REVOKED, parsed)
    return RecordJudge(kind, authority, is_signature_required=is_required)


def header(by: Issued, record: ControlRecord = MEMBER, at: float = NOW) -> bytes:
    return signer(by).header(record, int(at * 1000))


def test_a_record_is_its_writers(ca: Ca) -> None:
    given = header(named(ca, "node"))
    assert judge(ca).judge(MEMBER, given, NOW, is_new=True) == int(NOW * 1000)


def test_a_certificate_that_cannot_be_read_costs_its_record_only(ca: Ca) -> None:
    mine = named(ca, "node")
    of_no_version = mine.der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020105"), 1)
    with_one_thing_twice = mine.der.replace(bytes.fromhex("0603551d11"), bytes.fromhex("0603551d25"))
    assert mine.der not in {of_no_version, with_one_thing_twice}
    for certificates in (
        [of_no_version],
        [with_one_thing_twice],
        [b""],
        [mine.der[:-1]],
        [mine.der, of_no_version],
        [mine.der, b"\0"],
    ):
        signature = signatures_pb2.RecordSignature.FromString(header(mine))
        signature.certificates[:] = certificates
        with pytest.raises(ContractError, match="doesn't count"):
            judge(ca).judge(MEMBER, signature.SerializeToString(), NOW, is_new=True)


@pytest.mark.parametrize(
    "other",
    [
        MEMBER._replace(topic="app-statehouse-commits"),
        MEMBER._replace(key=b"n2"),
        MEMBER._replace(value=b"heartbeaT"),
        MEMBER._replace(value=None),
        MEMBER._replace(value=b""),
        ControlRecord("app-statehouse-membersn", b"1", b"heartbeat"),
        ControlRecord("app-statehouse-members", b"n1h", b"eartbeat"),
        MEMBER._replace(key=None),
    ],
)
def test_it_can_be_neither_moved_nor_altered(ca: Ca, other: ControlRecord) -> None:
    with pytest.raises(ContractError, match="signature is not of this record"):
        judge(ca).judge(other, header(named(ca, "node")), NOW, is_new=False)


def _altered(change: Callable[[signatures_pb2.RecordSignature], object], given: bytes) -> bytes:
    signature = signatures_pb2.RecordSignature.FromString(given)
    change(signature)
    return signature.SerializeToString()


def test_nothing_that_a_signature_says_can_be_altered(ca: Ca) -> None:
    mine, other = named(ca, "node"), named(ca, "other")
    given = header(mine)
    changes: list[Callable[[Any], object]] = [
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(signed_at_ms=int(NOW * 1000) + 1)),
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(number=2)),
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(run=b"a run..2")),
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(signature=b"")) or it.ClearField("signature"),
        lambda it: it.certificates.__setitem__(0, other.der),
        lambda it: it.certificates.pop(),
        lambda it: it.certificates.__setitem__(0, b"no certificate"),
        lambda it: it.certificates.extend([mine.der] * 8),
        lambda it: it.ClearField("run"),
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(signed_at_ms=2**62)),
        lambda it: it.MergeFrom(signatures_pb2.RecordSignature(number=2**64 - 1)),
    ]
    for change in changes:
        with pytest.raises(ContractError, match=r"signature|certificate|signed_at"):
            judge(ca).judge(MEMBER, _altered(change, given), NOW, is_new=True)
    for rubbish in (b"", b"\xff", b"x" * 70_000):
        with pytest.raises(ContractError):
            judge(ca).judge(MEMBER, rubbish, NOW, is_new=True)


def test_only_certificates_of_the_ca_that_hold_count(ca: Ca, tmp_path: Path) -> None:
    stranger = Ca(tmp_path, "stranger")
    with pytest.raises(ContractError, match="tls_ca"):
        judge(ca).judge(MEMBER, header(named(stranger, "node")), NOW, is_new=True)
    impostor = Ca(tmp_path, "house")  # of the same name
    with pytest.raises(ContractError, match="tls_ca"):
        judge(ca).judge(MEMBER, header(named(impostor, "node")), NOW, is_new=True)
    revoked = named(ca, "node")
    lists = read_revoked(ca.crl([revoked]).read_bytes(), ca.path.read_bytes())
    judged = RecordJudge(
        MEMBERS, Authority(read_anchors(ca.path.read_bytes()), lists, None), is_signature_required=False
    )
    with pytest.raises(ContractError, match="revoked"):
        judged.judge(MEMBER, header(revoked), NOW, is_new=False)
    assert judged.judge(MEMBER, header(named(ca, "node")), NOW, is_new=True)


def test_a_certificate_that_has_expired_counts_for_what_it_signed_before_but_for_nothing_new(ca: Ca) -> None:
    now = time.time()  # the module's may be from half an hour ago
    expired = named(ca, "node", expired=True)  # an hour ago
    before, after = now - 5_400, now - 1_800
    assert judge(ca).judge(MEMBER, header(expired, at=before), now, is_new=False)
    for at, is_new in ((before, True), (after, True), (after, False), (now, False)):
        with pytest.raises(ContractError, match="time of a certificate"):
            judge(ca).judge(MEMBER, header(expired, at=at), now, is_new=is_new)
    good = header(named(ca, "node"), at=now)
    for is_new in (True, False):
        assert judge(ca).judge(MEMBER, good, now, is_new=is_new)
    with pytest.raises(ContractError, match="time of a certificate"):
        judge(ca).judge(MEMBER, good, now - 86_400, is_new=True)


def _signed_by(
    leaf: Any, subject: str, issuer_key: Any, issuer: x509.Name, *, is_ca: bool, is_short: bool = False
) -> Any:
    """Return a certificate with this key."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer)
        .public_key(leaf.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=12))  # the module's time may be from long before
        .not_valid_after(now + timedelta(hours=12))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_short else None), critical=True)
    )
    return builder.sign(issuer_key, SHA256())


def _pem(key: Any) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize(
    ("between_is_ca", "root_is_short", "is_good"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_a_chain_leads_to_the_ca_over_cas_only(between_is_ca: bool, root_is_short: bool, is_good: bool) -> None:
    root_key, between_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    root_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
    root = _signed_by(root_key, "root", root_key, root_name, is_ca=True, is_short=root_is_short)
    between = _signed_by(between_key, "between", root_key, root_name, is_ca=between_is_ca)
    leaf = _signed_by(key, "leaf", between_key, between.subject, is_ca=False)
    chain = b"".join(each.public_bytes(Encoding.PEM) for each in (leaf, between))
    given = RecordSigner(chain, _pem(key), bytes(RUN_BYTES)).header(MEMBER, int(NOW * 1000))
    judged = RecordJudge(MEMBERS, Authority({root.subject: (root,)}), is_signature_required=True)
    if is_good:
        assert judged.judge(MEMBER, given, NOW, is_new=True)
    else:
        with pytest.raises(ContractError, match="tls_ca"):
            judged.judge(MEMBER, given, NOW, is_new=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: rsa.generate_private_key(65_537, 2_048),
        lambda: ec.generate_private_key(ec.SECP384R1()),
        ed25519.Ed25519PrivateKey.generate,
    ],
)
def test_keys_of_all_kinds_sign(make: Callable[[], Any]) -> None:
    key, root_key = make(), ec.generate_private_key(ec.SECP256R1())
    root_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "root")])
    root = _signed_by(root_key, "root", root_key, root_name, is_ca=True)
    leaf = _signed_by(key, "leaf", root_key, root_name, is_ca=False)
    signs = RecordSigner(leaf.public_bytes(Encoding.PEM), _pem(key), bytes(RUN_BYTES))
    judged = RecordJudge(MEMBERS, Authority({root.subject: (root,)}), is_signature_required=True)
    tombstone = MEMBER._replace(value=None)
    assert judged.judge(tombstone, signs.header(tombstone, int(NOW * 1000)), NOW, is_new=True)
    with pytest.raises(ConfigurationError, match="belong together"):
        RecordSigner(root.public_bytes(Encoding.PEM), _pem(key), bytes(RUN_BYTES))


@pytest.mark.parametrize(
    ("kind", "who", "record", "may"),
    [
        (MEMBERS, "node", MEMBER, True),
        (MEMBERS, "node", MEMBER._replace(value=None), True),
        (MEMBERS, "n7", MEMBER, False),
        (MEMBERS, "n7", MEMBER._replace(key=b"n7"), True),
        (MEMBERS, "n7", MEMBER._replace(key=b"n7-1"), True),
        (MEMBERS, "n7", MEMBER._replace(value=None), False),
        (MEMBERS, "router", MEMBER, False),
        (MEMBERS, "processor", MEMBER, False),
        (MEMBERS, "processor", MEMBER._replace(value=None), True),
        (MEMBERS, "nobody", MEMBER, False),
        *((kind, "processor", ControlRecord("t", b"k", b"v"), True) for kind in (ASSIGNMENT, COMMITS)),
        *((kind, "node", ControlRecord("t", b"k", b"v"), False) for kind in (ASSIGNMENT, COMMITS)),
        *((kind, "operator", ControlRecord("t", b"k", b"v"), False) for kind in (ASSIGNMENT, COMMITS)),
        (COMMITS, "operator", ControlRecord("t", b"k", None), True),
        (ASSIGNMENT, "operator", ControlRecord("t", b"k", None), False),
        (ASSIGNMENT, "operator", ControlRecord("t", VERSIONS_KEY, b"v"), True),
        (ASSIGNMENT, "processor", ControlRecord("t", VERSIONS_KEY, b"v"), False),
    ],
)
def test_the_rules_say_who_writes_what(ca: Ca, kind: str, who: str, record: ControlRecord, may: bool) -> None:
    given = header(named(ca, who), record)
    judged = judge(ca, kind, RULES + PROCESSOR)
    if may:
        assert judged.judge(record, given, NOW, is_new=True)
    else:
        with pytest.raises(ContractError, match="may not write it"):
            judged.judge(record, given, NOW, is_new=True)


def test_rules_from_before_keep_nobody_from_writing(ca: Ca) -> None:
    """They give nobody the role of a processor."""
    record = ControlRecord("t", b"k", b"v")
    assert judge(ca, ASSIGNMENT, RULES).judge(record, header(named(ca, "processor"), record), NOW, is_new=True)
    authority = Authority(read_anchors(ca.path.read_bytes()), NONE_REVOKED, parsed_rules(RULES.encode()))
    assert authority.open_kinds() == (ASSIGNMENT, COMMITS)


def test_unsigned_records_are_taken_until_a_setting_refuses_them(ca: Ca) -> None:
    assert judge(ca).judge(MEMBER, None, NOW, is_new=True) is None
    with pytest.raises(ContractError, match="require_signed_records"):
        judge(ca, is_required=True).judge(MEMBER, None, NOW, is_new=False)


def test_a_record_that_is_written_again_after_a_later_one_is_refused(ca: Ca) -> None:
    writes = signer(named(ca, "node"))
    first, second = (writes.header(MEMBER, int(NOW * 1000)) for _ in range(2))
    other = signer(named(ca, "node"), b"a run..2").header(MEMBER, int(NOW * 1000))
    judged = judge(ca)
    for given in (first, second, second, other):
        assert judged.judge(MEMBER, given, NOW, is_new=True)
    with pytest.raises(ContractError, match="written it again"):
        judged.judge(MEMBER, first, NOW, is_new=True)
    judged.begin_anew()
    for given in (first, second):
        assert judged.judge(MEMBER, given, NOW, is_new=False), "the log is read again"


def test_who_loses_a_right_writes_no_more(ca: Ca) -> None:
    given = header(named(ca, "n7"), MEMBER._replace(key=b"n7"))
    judged = judge(ca, MEMBERS, RULES)
    assert judged.judge(MEMBER._replace(key=b"n7"), given, NOW, is_new=True)
    authority = Authority(
        read_anchors(ca.path.read_bytes()), NONE_REVOKED, parsed_rules(RULES.replace("n7-*", "n8").encode())
    )
    judged.use(replace(authority, rules=parsed_rules(RULES.replace('"n7", "n7-*"', '"n8"').encode())))
    with pytest.raises(ContractError, match="may not write"):
        judged.judge(MEMBER._replace(key=b"n7"), given, NOW, is_new=True)
