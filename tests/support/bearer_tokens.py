"""JSON web tokens as an issuer of tests signs them, with the JWKS file of its public keys."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER: Final = "https://issuer.house"
AUDIENCE: Final = "statehouse"


class TokenIssuer:
    """An issuer with a key for each of RS256, PS256, ES256 and EdDSA, whose kid is the algorithm's name."""

    def __init__(self) -> None:
        self.secrets: dict[str, Any] = {
            "RS256": rsa.generate_private_key(65_537, 2_048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }
        self.secrets["PS256"] = self.secrets["RS256"]

    def keys(self) -> list[dict[str, Any]]:
        """Return the public keys, as they stand in a JWKS."""
        return [{**_public(key), "kid": name, "alg": name, "use": "sig"} for name, key in self.secrets.items()]

    def write_keys(self, path: Path) -> None:
        """Write the JWKS file."""
        path.write_text(json.dumps({"keys": self.keys()}))

    def token(
        self, algorithm: str = "ES256", *, kid: str | None = None, lasts_s: float = 3_600.0, **claims: object
    ) -> str:
        """Return a token for the subject "reports@house". `claims`: others than usual; None leaves one out."""
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "reports@house", "exp": int(time.time() + lasts_s)}
        content = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        headers = {"kid": algorithm if kid is None else kid}
        return jwt.encode(content, self.secrets[algorithm], algorithm, headers)


def _public(key: Any) -> dict[str, Any]:
    kind = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    algorithm: Any = next((each for base, each in kind.items() if isinstance(key, base)), OKPAlgorithm)
    public: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    return public
