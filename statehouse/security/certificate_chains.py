"""Whether a CA that is trusted has signed a certificate, itself or through others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from statehouse.security.certificates import CallerCertificate, read_certificate

_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm)


@dataclass(frozen=True, slots=True)
class Chain:
    """A certificate that leads to a CA.

    Attributes:
        leaf: the certificate.
        certificates: what it says, and what those between it and the CA say.
        not_before: epoch seconds, from which all of them and the CA's hold.
        not_after: epoch seconds, up to which they do.

    """

    leaf: x509.Certificate
    certificates: tuple[CallerCertificate, ...]
    not_before: float
    not_after: float


def chain_of(shown: Sequence[bytes], authorities: Sequence[x509.Certificate]) -> Chain:
    """Follow a certificate to a CA. `shown`: it, and others that may stand between, in DER.

    Raises:
        ValueError: one of them can't be read, or they lead to no CA that is trusted.

    """
    try:
        leaf, *others = [x509.load_der_x509_certificate(each) for each in shown]
    except _UNREADABLE as error:
        raise ValueError("a certificate can't be read") from error
    path, current = [leaf], leaf
    while (authority := _issuer(current, authorities, len(path) - 1)) is None:
        between = _issuer(current, [each for each in others if each not in path], len(path) - 1)
        if between is None:
            raise ValueError("no CA in tls_ca has signed its certificate")
        path.append(between)
        current = between
    whole = [*path, authority]
    return Chain(
        leaf,
        tuple(map(_read, path)),
        max(each.not_valid_before_utc.timestamp() for each in whole),
        min(each.not_valid_after_utc.timestamp() for each in whole),
    )


def _read(certificate: x509.Certificate) -> CallerCertificate:
    return read_certificate(certificate.public_bytes(Encoding.DER))


def _issuer(of: x509.Certificate, among: Iterable[x509.Certificate], below: int) -> x509.Certificate | None:
    """Return who has signed a certificate. `below`: how many CAs come between it and the leaf, itself included."""
    return next((each for each in among if _may_sign(each, below) and _has_signed(each, of)), None)


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, InvalidSignature):
        return False
    return True


def _may_sign(authority: x509.Certificate, below: int) -> bool:
    try:
        constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not constraints.ca or (constraints.path_length is not None and below > constraints.path_length):
            return False
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return False
    try:
        return authority.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound:
        return True
