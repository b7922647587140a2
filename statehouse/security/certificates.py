"""Certificates of callers, and lists of revoked ones: bytes to values. Pure.

TLS has checked a caller's certificate against the CA, once. Whether it still holds is another question (`chains.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from statehouse.errors import ConfigurationError
from statehouse.security.rules_file import is_uri

CRL_BYTES_MAX: Final = 16 << 20
"""For a file with lists: some 400,000 revoked certificates."""
CA_BYTES_MAX: Final = 1 << 20
SHOWN_MAX: Final = 8
"""Certificates that are taken of what somebody shows, the first included: chains have three or four."""
# Of DER.
_SEQUENCE, _LONG_FORM = 0x30, 0x80
UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What the library raises of certificates, lists and keys that it can't read, now or when a part is asked for."""

Anchors: TypeAlias = Mapping[x509.Name, tuple[x509.Certificate, ...]]
"""The certificates in tls_ca, by their subjects."""


@dataclass(frozen=True, slots=True)
class CallerCertificate:
    """What a certificate says.

    Attributes:
        names: URIs of its alternative names, then its subject in RFC 4514's form unless that is empty.
        issuer: who has signed it.
        serial: its number at the issuer.
        not_before: epoch seconds, from which it holds.
        not_after: epoch seconds, up to which it holds.

    """

    names: tuple[str, ...]
    issuer: x509.Name
    serial: int
    not_before: float
    not_after: float


@dataclass(frozen=True, slots=True)
class Revoked:
    """Certificates that no longer count.

    Attributes:
        serials: the numbers of revoked certificates, by issuer.
        due: issuers, as text, and when their list should be replaced by a newer one, epoch seconds.

    """

    serials: Mapping[x509.Name, frozenset[int]]
    due: tuple[tuple[str, float], ...] = ()

    def has(self, certificate: CallerCertificate) -> bool:
        """Return whether a certificate has been revoked."""
        return self.names(certificate.issuer, certificate.serial)

    def names(self, issuer: x509.Name, serial: int) -> bool:
        """Return whether the certificate of this number has been revoked by its issuer."""
        return serial in self.serials.get(issuer, ())

    def overdue(self, now: float) -> frozenset[str]:
        """Return the issuers whose list is too old. It is used all the same: what it names stays revoked."""
        return frozenset(issuer for issuer, at in self.due if at < now)


NONE_REVOKED: Final = Revoked({})


def load(der: bytes) -> x509.Certificate:
    """Read a certificate; parts of it are read when they are asked for.

    Raises:
        ValueError: it can't be read.

    """
    try:
        return x509.load_der_x509_certificate(der)
    except UNREADABLE as error:
        raise ValueError("it can't be read") from error


def facts_of(certificate: x509.Certificate) -> CallerCertificate:
    """Return what a certificate says.

    Raises:
        ValueError: a part of it can't be read.

    """
    try:
        subject = certificate.subject.rfc4514_string()
        return CallerCertificate(
            (*_uris(certificate), *([subject] if subject else [])),
            certificate.issuer,
            certificate.serial_number,
            certificate.not_valid_before_utc.timestamp(),
            certificate.not_valid_after_utc.timestamp(),
        )
    except UNREADABLE as error:
        raise ValueError("it can't be read") from error


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    # The field may hold any text, also one that looks like somebody's subject.
    return [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if is_uri(uri)]


def read_chain(shown: bytes) -> list[x509.Certificate]:
    """Read the first `SHOWN_MAX` certificates, in DER, that stand one after another.

    Raises:
        ValueError: something else stands there, or nothing.

    """
    found: list[x509.Certificate] = []
    while len(found) < SHOWN_MAX and (shown or not found):
        size = _der_size(shown)
        if not 0 < size <= len(shown):
            raise ValueError("it can't be read")
        found.append(load(shown[:size]))
        shown = shown[size:]
    return found


def first_of_chain(shown: bytes) -> bytes:
    """Return the first of certificates in DER that stand one after another; all if that is none."""
    return shown[: _der_size(shown) or None]


def _der_size(data: bytes) -> int:
    """Return how long the sequence is that stands at the beginning, 0 if there is none."""
    if len(data) < 2 or data[0] != _SEQUENCE:
        return 0
    if data[1] < _LONG_FORM:
        return 2 + data[1]
    digits = data[1] - _LONG_FORM
    return 2 + digits + int.from_bytes(data[2 : 2 + digits])


def read_anchors(ca: bytes) -> Anchors:
    """Read the content of tls_ca.

    Raises:
        ConfigurationError: it is too large, or has no certificates that can be read.

    """
    if len(ca) > CA_BYTES_MAX:
        raise ConfigurationError(f"tls_ca has more than {CA_BYTES_MAX >> 20} MiB")
    found: defaultdict[x509.Name, tuple[x509.Certificate, ...]] = defaultdict(tuple)
    try:
        for each in x509.load_pem_x509_certificates(ca):
            found[each.subject] += (each,)
    except UNREADABLE:
        raise ConfigurationError("tls_ca has no certificates that can be read: give them in PEM") from None
    return dict(found)


def hosts_of(pem: bytes) -> list[str]:
    """Return the hosts in a server's certificate, names first, then addresses.

    Raises:
        ValueError: it can't be read.

    """
    try:
        extensions = x509.load_pem_x509_certificate(pem).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    except UNREADABLE as error:
        raise ValueError("it can't be read") from error
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def read_revoked(crl: bytes, ca: bytes) -> Revoked:
    """Read lists of revoked certificates, PEM. `ca`: certificates, PEM, that may have signed them.

    Raises:
        ConfigurationError: something can't be read, or none of the certificates has signed a list.

    """
    if len(crl) > CRL_BYTES_MAX:
        raise ConfigurationError(f"tls_crl has more than {CRL_BYTES_MAX >> 20} MiB")
    authorities = [each for several in read_anchors(ca).values() for each in several]
    serials: defaultdict[x509.Name, frozenset[int]] = defaultdict(frozenset)
    due = []
    for number, pem in enumerate(_parts(crl), 1):
        found = _signed_list(number, pem, authorities)
        # Several lists of an issuer add up: a change of the CA's key leaves two of them.
        serials[found.issuer] |= frozenset(each.serial_number for each in found)
        if found.next_update_utc is not None:
            due.append((found.issuer.rfc4514_string(), found.next_update_utc.timestamp()))
    if not serials:
        raise ConfigurationError("tls_crl has no list of revoked certificates: give one in PEM")
    return Revoked(dict(serials), tuple(due))


_END: Final = b"-----END X509 CRL-----"


def _parts(crl: bytes) -> list[bytes]:
    """Return the lists of a file, each in PEM."""
    parts = crl.split(_END)
    if parts.pop().strip():
        raise ConfigurationError("tls_crl ends within a list of revoked certificates: write it whole, in PEM")
    return [part + _END + b"\n" for part in parts]


def _signed_list(number: int, pem: bytes, authorities: Sequence[x509.Certificate]) -> x509.CertificateRevocationList:
    try:
        found = x509.load_pem_x509_crl(pem)
        if not any(_has_signed(each, found) for each in authorities):
            raise ConfigurationError(
                f"tls_crl: no certificate in tls_ca has signed list {number}, of {found.issuer.rfc4514_string()}: "
                "add its issuer's certificate to tls_ca, or take the list out"
            )
        if _is_indirect(found):
            raise ConfigurationError(
                f"tls_crl: list {number} is about other issuers' certificates, too: give a list for each issuer"
            )
    except UNREADABLE:
        raise ConfigurationError(f"tls_crl: list {number} can't be read: give it in PEM") from None
    return found


def _has_signed(authority: x509.Certificate, found: x509.CertificateRevocationList) -> bool:
    try:
        # Only keys that certificates can be signed with are taken; the type checker can't know this about a CA's.
        return authority.subject == found.issuer and found.is_signature_valid(authority.public_key())  # type: ignore[arg-type]
    except (*UNREADABLE, InvalidSignature):
        return False


def _is_indirect(found: x509.CertificateRevocationList) -> bool:
    try:
        return found.extensions.get_extension_for_class(x509.IssuingDistributionPoint).value.indirect_crl
    except x509.ExtensionNotFound:
        return False
