"""The identity of a caller: from what they have shown, and the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from statehouse.errors import LookupFailure, Reason
from statehouse.security.bearer_tokens import TOKEN_BYTES_MAX, JwtVerifier, TokenRefused, entries_of
from statehouse.security.certificates import Anchors, CallerCertificate, Revoked, facts_of, read_chain
from statehouse.security.chains import ChainVerifier, NoChain
from statehouse.security.rules import EVERYTHING, Grant, Rules, RulesEntry
from statehouse.security.shown import Shown

ANONYMOUS: Final = "anonymous"
"""A caller that has shown nothing."""
ANYBODY: Final = "anybody"
"""A caller where there are no rules."""
_SHOWN_MAX: Final = 200
_SCHEME: Final = "bearer"


@dataclass(frozen=True, slots=True)
class KnownCaller:
    """A caller that may call.

    Attributes:
        name: their identity in the rules; several are joined by +.
        grants: what they may do.
        until: epoch seconds, up to which what they have shown holds.

    """

    name: str
    grants: tuple[Grant, ...]
    until: float
    beside: str = ""
    """For a caller with a token and a certificate, the certificate's identity: perhaps it belongs to the
    token's forwarder. Empty if there is no certificate, or the rules don't know it."""


@dataclass(frozen=True, slots=True)
class KnownCallers:
    """What callers are known by.

    Attributes:
        rules: None: everybody may do everything, except who shows a certificate that doesn't hold.
        jwt: checks JSON web tokens; None if the rules have none.
        revoked: certificates that no longer count.
        anchors: the certificates in tls_ca; None: there is no CA, and so nobody shows a certificate that counts.

    """

    rules: Rules | None
    jwt: JwtVerifier | None
    revoked: Revoked
    anchors: Anchors | None = None

    def identify(self, shown: Shown, now: float) -> KnownCaller:
        """Return who has shown this. If there is a token, it decides; a certificate shown with it must hold, too.

        `now`: epoch seconds.

        Raises:
            LookupFailure: UNAUTHENTICATED, what was shown doesn't count.

        """
        certificate, certified_until = None, math.inf
        if shown.certificate:
            certificate, certified_until = self._checked_certificate(shown.certificate, now, is_verified=True)
        if self.rules is None:
            return KnownCaller(ANYBODY, EVERYTHING, certified_until)
        if shown.authorization:
            entries, until = self._by_token(self.rules, _token(shown.authorization))
            beside = () if certificate is None else _named_by(self.rules, certificate)
            return _known(entries, min(until, certified_until), _joined(beside))
        if certificate is not None:
            return _known(_by_certificate(self.rules, certificate), certified_until)
        return KnownCaller(ANONYMOUS, self.rules.anonymous, math.inf)

    def identify_other(self, certificate: bytes, now: float) -> KnownCaller:
        """Return whose certificate this is that somebody else shows, as `Shown.on_behalf` has it.

        Raises:
            LookupFailure: UNAUTHENTICATED, it doesn't count.

        """
        if self.anchors is None:
            raise refused("it isn't known which CAs sign callers' certificates: set tls_ca")
        checked, until = self._checked_certificate(certificate, now, is_verified=False)
        if self.rules is None:
            return KnownCaller(ANYBODY, EVERYTHING, until)
        return _known(_by_certificate(self.rules, checked), until)

    def _checked_certificate(self, shown: bytes, now: float, *, is_verified: bool) -> tuple[CallerCertificate, float]:
        """Return a certificate, and up to when it holds with what it rests on. `is_verified`: see `ChainVerifier`."""
        try:
            chain = read_chain(shown)
            certificate = facts_of(chain[0])
        except ValueError as error:
            raise refused(f"the certificate doesn't count: {error}") from None
        if now < certificate.not_before:
            raise refused("the certificate doesn't hold yet: compare the clocks")
        if now > certificate.not_after:
            raise refused("the certificate has expired: show a new one")
        if self.revoked.has(certificate):
            raise refused("the certificate has been revoked: show another one")
        if self.anchors is None:
            return certificate, certificate.not_after
        try:
            return certificate, ChainVerifier(self.anchors, self.revoked, now, is_verified=is_verified).until(chain)
        except NoChain as error:
            raise refused(f"the certificate doesn't count: {error}") from None

    def _by_token(self, rules: Rules, token: str) -> tuple[tuple[RulesEntry, ...], float]:
        entries = entries_of(token, rules.tokens)
        if entries:
            return entries, math.inf
        if self.jwt is None:
            raise refused("the rules name no such token")
        try:
            verified = self.jwt.verify(token)
        except TokenRefused as error:
            raise refused(f"the rules name no such token, and as a JSON web token it doesn't count: {error}") from None
        entries = rules.subjects.get(verified.subject, ())
        if not entries:
            raise refused(f"the token is good, but the rules name no subject {verified.subject[:_SHOWN_MAX]!r}")
        return entries, verified.until


def refused(message: str) -> LookupFailure:
    """Return the failure that says why a caller isn't known."""
    return LookupFailure(Reason.UNAUTHENTICATED, message)


def _token(authorization: str) -> str:
    """Return the token of the metadata `authorization`."""
    scheme, _, token = authorization.partition(" ")
    # Blanks around it would make many texts of one token.
    if scheme.lower() != _SCHEME or not token or token != token.strip():
        raise refused("the metadata authorization isn't of the form: Bearer TOKEN")
    if len(token) > TOKEN_BYTES_MAX:
        raise refused(f"the token is longer than {TOKEN_BYTES_MAX >> 10} KiB")
    return token


def _by_certificate(rules: Rules, certificate: CallerCertificate) -> tuple[RulesEntry, ...]:
    found = _named_by(rules, certificate)
    if not found:
        names = ", ".join(certificate.names) or "none"
        raise refused(f"the rules name none of the certificate's names: {names[:_SHOWN_MAX]}")
    return found


def _named_by(rules: Rules, certificate: CallerCertificate) -> tuple[RulesEntry, ...]:
    """Return the entries that name a certificate, each once."""
    found = {entry.name: entry for name in certificate.names for entry in rules.certificates.get(name, ())}
    return tuple(found.values())


def _joined(entries: tuple[RulesEntry, ...]) -> str:
    return "+".join(entry.name for entry in entries)


def _known(entries: tuple[RulesEntry, ...], until: float, beside: str = "") -> KnownCaller:
    """Return the caller that these entries are about: what they may do adds up."""
    return KnownCaller(_joined(entries), tuple(grant for entry in entries for grant in entry.grants), until, beside)
