"""Names of certificates, and lists of revoked ones, with those of a real CA."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from statehouse.errors import ConfigurationError
from statehouse.security.certificates import CA_BYTES_MAX, CRL_BYTES_MAX, facts_of, load, read_revoked
from tests.support.certificates import Authority


def test_a_certificate_is_read(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    issued = authority.issue(["reports"], ["spiffe://house/reports", "spiffe://house/other"])
    read = facts_of(load(issued.der))
    assert read.names == ("spiffe://house/reports", "spiffe://house/other", "CN=reports")
    assert read.not_before < time.time() < read.not_after < time.time() + 25 * 3_600
    assert read.issuer == authority.certificate.subject
    assert read.serial == issued.certificate.serial_number


def test_a_uri_that_looks_like_a_subject_is_no_name(tmp_path: Path):
    issued = Authority(tmp_path, "ca").issue(["a"], ["CN=ops", "CN=ops,O=House"])
    assert facts_of(load(issued.der)).names == ("CN=a",)


def test_a_subject_cannot_be_put_together_from_one_that_is_escaped(tmp_path: Path):
    issued = Authority(tmp_path, "ca").issue(["ops,O=House"])
    assert facts_of(load(issued.der)).names == (r"CN=ops\,O=House",)


@pytest.mark.parametrize("der", [b"", b"x", b"\x30\x03\x02\x01\x01"])
def test_what_is_no_certificate_is_refused(der: bytes):
    with pytest.raises(ValueError, match="can't be read"):
        facts_of(load(der))


def test_revoked_are_those_of_the_list_and_of_its_issuer(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    good, bad = authority.issue(["good"]), authority.issue(["bad"])
    revoked = read_revoked(authority.crl([bad]).read_bytes(), authority.path.read_bytes())
    assert revoked.has(facts_of(load(bad.der)))
    assert not revoked.has(facts_of(load(good.der)))
    number = bad.certificate.serial_number
    other = facts_of(load(Authority(tmp_path, "other").issue(["bad"]).der))
    same_number = type(other)(other.names, other.issuer, number, other.not_before, other.not_after)
    assert not revoked.has(same_number)


def test_lists_of_several_issuers_and_of_one_issuer_add_up(tmp_path: Path):
    one, two = Authority(tmp_path, "one"), Authority(tmp_path, "two")
    bad = [one.issue(["a"]), one.issue(["b"]), two.issue(["c"])]
    lists = [one.crl(bad[:1]), one.crl(bad[1:2]), two.crl(bad[2:])]
    ca = one.path.read_bytes() + two.path.read_bytes()
    revoked = read_revoked(b"".join(each.read_bytes() for each in lists), ca)
    assert all(revoked.has(facts_of(load(each.der))) for each in bad)


def test_an_empty_list_revokes_nobody(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    revoked = read_revoked(authority.crl([]).read_bytes(), authority.path.read_bytes())
    assert not revoked.has(facts_of(load(authority.issue(["a"]).der)))
    assert revoked.overdue(time.time()) == frozenset()


def test_a_list_that_is_too_old_is_used_and_named(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    bad = authority.issue(["bad"])
    revoked = read_revoked(authority.crl([bad], hours=-1).read_bytes(), authority.path.read_bytes())
    assert revoked.has(facts_of(load(bad.der)))
    assert revoked.overdue(time.time()) == {"CN=ca"}
    assert revoked.overdue(time.time() - 7_200) == frozenset()


def problem(crl: bytes, ca: bytes) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_revoked(crl, ca)
    return str(caught.value)


def test_a_list_that_no_ca_has_signed_is_refused(tmp_path: Path):
    ours, folder = Authority(tmp_path, "ca"), tmp_path / "theirs"
    folder.mkdir()
    same_name = Authority(folder, "ca")
    for other in (same_name, Authority(tmp_path, "other")):
        both = ours.crl([]).read_bytes() + other.crl([]).read_bytes()
        assert "no certificate in tls_ca has signed list 2" in problem(both, ours.path.read_bytes())


def test_files_that_cannot_be_read_are_refused(tmp_path: Path):
    authority = Authority(tmp_path, "ca")
    crl, ca = authority.crl([]).read_bytes(), authority.path.read_bytes()
    assert "tls_ca has no certificates" in problem(crl, b"")
    assert "no list of revoked certificates" in problem(b"", ca)
    assert "ends within" in problem(crl[:-30], ca)
    assert "list 1 can't be read" in problem(crl.replace(b"M", b"?", 1), ca)
    assert "list 1 can't be read" in problem(ca.replace(b"CERTIFICATE", b"X509 CRL"), ca)
    assert "ends within" in problem(x509.load_pem_x509_crl(crl).public_bytes(Encoding.DER), ca)
    assert "MiB" in problem(b"\n" * (CRL_BYTES_MAX + 1), ca)
    assert "MiB" in problem(crl, b"\n" * (CA_BYTES_MAX + 1))
