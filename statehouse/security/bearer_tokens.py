"""Bearer tokens: static ones by their hashes, and JSON web tokens by public keys from a file. Nothing is fetched."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from statehouse.errors import ConfigurationError
from statehouse.security.rules import JwtRules, RulesEntry

TOKEN_BYTES_MAX: Final = 8 << 10
KEYS_BYTES_MAX: Final = 1 << 20
_RSA_BITS_MIN: Final = 2_048
_KEY_TYPES: Final = frozenset({"RSA", "EC", "OKP"})
_CLAIMS: Final = ("exp", "iss", "aud", "sub")
# What a token is refused for, in words that repeat nothing of it. The first that fits counts.
_REFUSALS: Final[Mapping[type[Exception], str]] = MappingProxyType(
    {
        jwt.ExpiredSignatureError: "it has expired",
        jwt.ImmatureSignatureError: "it doesn't hold yet",
        jwt.MissingRequiredClaimError: "it lacks one of the claims exp, iss, aud and sub",
        jwt.InvalidAudienceError: "it is for another audience",
        jwt.InvalidIssuerError: "it has another issuer",
        jwt.InvalidAlgorithmError: "its algorithm isn't allowed, or isn't its key's",
        jwt.InvalidSignatureError: "its signature is wrong",
    }
)


class TokenRefused(Exception):
    """A token doesn't count; the message says why, and repeats nothing of it."""


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a JSON web token says. `until`: epoch seconds, up to which it counts."""

    subject: str
    until: float


class JwtVerifier:
    """Checks JSON web tokens.

    Raises:
        ConfigurationError: `keys`, the content of the JWKS file, is wrong.

    """

    def __init__(self, rules: JwtRules, keys: bytes) -> None:
        self._rules, self._keys = rules, _read_keys(keys, rules.algorithms)

    def verify(self, token: str) -> VerifiedToken:
        """Check a token's signature, issuer, audience and times.

        Raises:
            TokenRefused: it doesn't count.

        """
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid", ""))
            if key is None:
                raise TokenRefused("its header has no kid that is in the file with keys")
            claims = jwt.decode(
                token,
                key,
                algorithms=list(self._rules.algorithms),
                issuer=self._rules.issuer,
                audience=self._rules.audience,
                leeway=self._rules.leeway_s,
                options={"require": list(_CLAIMS)},
            )
            return VerifiedToken(claims["sub"], float(claims["exp"]) + self._rules.leeway_s)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            words = (text for kind, text in _REFUSALS.items() if isinstance(error, kind))
            raise TokenRefused(next(words, "it is no JSON web token that can be read")) from None


def entries_of(token: str, tokens: tuple[tuple[bytes, RulesEntry], ...]) -> tuple[RulesEntry, ...]:
    """Return the entries whose token this is, each once.

    Each hash is compared, each in constant time, so that the time says nothing about which came near.
    """
    digest = hashlib.sha256(token.encode(errors="replace")).digest()
    return tuple({entry.name: entry for known, entry in tokens if hmac.compare_digest(known, digest)}.values())


def _read_keys(content: bytes, algorithms: tuple[str, ...]) -> Mapping[str, jwt.PyJWK]:
    """Return the keys of a JWKS file that these algorithms take, by `kid`."""
    if len(content) > KEYS_BYTES_MAX:
        raise ConfigurationError(f"the file with keys has more than {KEYS_BYTES_MAX >> 20} MiB")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ConfigurationError("the file with keys is no JSON: give the issuer's JWKS") from None
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ConfigurationError('the file with keys has no list "keys": give the issuer\'s JWKS')
    found: dict[str, jwt.PyJWK] = {}
    for number, key in enumerate(listed, 1):
        usable = _usable(number, key, algorithms)
        if usable is not None:
            kid, read = usable
            if kid in found:
                raise ConfigurationError(f"the file with keys: key {number} has the kid of another key")
            found[kid] = read
    if not found:
        raise ConfigurationError(f"the file with keys has none for {', '.join(algorithms)} with a kid")
    return found


def _usable(number: int, key: Any, algorithms: tuple[str, ...]) -> tuple[str, jwt.PyJWK] | None:  # noqa: ANN401 - JSON
    """Return a key and its kid; None if tokens can't be signed with it here."""
    if not isinstance(key, dict) or not isinstance(kid := key.get("kid"), str) or not kid:
        return None
    if key.get("kty") == "oct" or "d" in key:
        raise ConfigurationError(
            f"the file with keys: key {number} is a secret: give public keys only, and take a new one in its place"
        )
    if key.get("kty") not in _KEY_TYPES or key.get("use", "sig") != "sig":
        return None
    try:
        read = jwt.PyJWK(key)
    except (jwt.PyJWTError, ValueError, TypeError):
        # An issuer may list kinds of keys that are not known here; tokens that they sign are refused.
        return None
    if isinstance(read.key, RSAPublicKey) and read.key.key_size < _RSA_BITS_MIN:
        raise ConfigurationError(
            f"the file with keys: key {number} has fewer than {_RSA_BITS_MIN} bits: take a new one"
        )
    return (kid, read) if read.algorithm_name in algorithms else None
