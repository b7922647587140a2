"""Whether a certificate leads to a CA of ours at a moment: signatures, times and revocation along the way. Pure.

A handshake checks a caller's chain once; connections last longer than certificates, also than those of CAs. And whose
certificate somebody else shows, no handshake has checked at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from statehouse.security.certificates import SHOWN_MAX, UNREADABLE, Anchors, Revoked

_SIGNATURES_MAX: Final = 64
"""Checked for one chain: each takes up to 0.1 ms, in which nothing else is done."""
_USAGES: Final = ExtensionOID.EXTENDED_KEY_USAGE
_CLIENTS: Final = frozenset({ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})
_UNDERSTOOD: Final = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        _USAGES,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
    }
)
"""Extensions that may be critical: who doesn't understand such a one must not accept the certificate."""


class NoChain(Exception):
    """A certificate leads to no CA of ours; the message says why."""


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why a way led nowhere. `weight`: the message names the heaviest of several problems."""

    weight: int
    message: str


_UNSIGNED: Final = _Problem(0, "no certificate in tls_ca has signed it, nor one that was shown with it")
_CANT_BE_READ: Final = _Problem(0, "it, or one that was shown with it, can't be read")
_NO_CA: Final = _Problem(1, "a certificate between it and tls_ca is no CA's, or not for so long a chain")
_NOT_UNDERSTOOD: Final = _Problem(1, "it, or one between it and tls_ca, has a critical extension that isn't understood")
_NOT_FOR_CALLERS: Final = _Problem(1, "it, or one between it and tls_ca, is not for clients (extended key usage)")
_TIME: Final = _Problem(2, "the time of a certificate between it and tls_ca is over, or hasn't begun")
_REVOKED: Final = _Problem(3, "a certificate between it and tls_ca has been revoked")


class ChainVerifier:
    """Looks for a chain from a certificate to `anchors` that holds at `now`.

    `is_verified`: a handshake has verified the chain that was shown. Else a chain counts for nothing if it has critical
    extensions that aren't understood here, such as name constraints.
    """

    def __init__(
        self,
        anchors: Anchors,
        revoked: Revoked,
        now: float,
        *,
        is_verified: bool,
    ) -> None:
        self._anchors, self._revoked, self._now, self._is_verified = anchors, revoked, now, is_verified
        self._signatures = 0
        self._why = _UNSIGNED

    def until(self, shown: Sequence[x509.Certificate]) -> float:
        """Return up to when the first certificate's chain holds, epoch seconds. The others are what it may lead over.

        Raises:
            NoChain: there is none that holds now.

        """
        leaf, *others = shown
        try:
            ends = self._end(leaf, others, 0)
        except UNREADABLE:  # parts of a certificate are read when they are asked for
            raise NoChain(_CANT_BE_READ.message) from None
        if ends is None:
            raise NoChain(self._why.message)
        return ends

    def _end(self, certificate: x509.Certificate, others: Sequence[x509.Certificate], above: int) -> float | None:
        """Return when the chain ends of a certificate that stands above so many CAs; None: it has none."""
        if not self._holds(certificate, above):
            return None
        own = certificate.not_valid_after_utc.timestamp()
        if certificate in self._anchors.get(certificate.subject, ()):
            return own
        for issuer in self._issuers(certificate, self._anchors.get(certificate.issuer, ())):
            if not _may_sign(issuer, above, is_anchor=True):
                self._note(_NO_CA)
            elif self._is_in_time(issuer) and self._is_understood(issuer):
                return min(own, issuer.not_valid_after_utc.timestamp())
        for issuer in self._issuers(certificate, others):
            if not _may_sign(issuer, above, is_anchor=False):
                self._note(_NO_CA)
                continue
            left = [each for each in others if each is not issuer]
            if (end := self._end(issuer, left, above + 1)) is not None:
                return min(own, end)
        return None

    def _holds(self, certificate: x509.Certificate, above: int) -> bool:
        """Return whether a certificate holds on its own."""
        if not (self._is_in_time(certificate) and self._is_understood(certificate)):
            return False
        if self._revoked.names(certificate.issuer, certificate.serial_number):
            return self._note(_REVOKED)
        usages = next((each.value for each in _extensions(certificate) if each.oid == _USAGES), None)
        if isinstance(usages, x509.ExtendedKeyUsage) and _CLIENTS.isdisjoint(usages):
            return self._note(_NOT_FOR_CALLERS)
        return above < SHOWN_MAX

    def _is_understood(self, certificate: x509.Certificate) -> bool:
        if self._is_verified:
            return True
        try:
            critical = {each.oid for each in certificate.extensions if each.critical}
        except UNREADABLE:
            return self._note(_NOT_UNDERSTOOD)
        return critical <= _UNDERSTOOD or self._note(_NOT_UNDERSTOOD)

    def _is_in_time(self, certificate: x509.Certificate) -> bool:
        begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
        return begin <= self._now <= end or self._note(_TIME)

    def _issuers(self, certificate: x509.Certificate, among: Sequence[x509.Certificate]) -> Iterator[x509.Certificate]:
        """Yield those that have signed a certificate."""
        for each in among:
            if each.subject != certificate.issuer or self._signatures >= _SIGNATURES_MAX:
                continue
            self._signatures += 1
            try:
                certificate.verify_directly_issued_by(each)
            except (*UNREADABLE, InvalidSignature):
                continue
            yield each

    def _note(self, why: _Problem) -> bool:
        """Note why a way leads nowhere."""
        if why.weight >= self._why.weight:
            self._why = why
        return False


def _extensions(certificate: x509.Certificate) -> Iterable[x509.Extension[x509.ExtensionType]]:
    """Return a certificate's extensions; none if one can't be read."""
    try:
        return certificate.extensions
    except UNREADABLE:
        return ()


def _may_sign(issuer: x509.Certificate, above: int, *, is_anchor: bool) -> bool:
    """Return whether a certificate may sign one that stands above so many other CAs' certificates.

    Old roots don't say so; the operator that put one into tls_ca did.
    """
    values = [each.value for each in _extensions(issuer)]
    basic = next((each for each in values if isinstance(each, x509.BasicConstraints)), None)
    usage = next((each for each in values if isinstance(each, x509.KeyUsage)), None)
    if usage is not None and not usage.key_cert_sign:
        return False
    if basic is None:
        return is_anchor and (usage is not None or issuer.version is x509.Version.v1)
    return basic.ca and (basic.path_length is None or above <= basic.path_length)
