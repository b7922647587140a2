"""Each kind of gate alone, as settings have it, and callers of each kind before it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.bearer_tokens import AUDIENCE, ISSUER, TokenIssuer
from tests.support.certificates import Authority, Issued

GATES: Final = ("tls_ca", "tls_crl", "rules", "tokens", "jwt")
"""Kinds: a CA alone; a CA with a list of revoked certificates; rules that name certificates, tokens, or subjects."""
CALLERS: Final = ("nothing", "wrong", "expired", "revoked", "right")
TOKEN: Final = "a-token-of-these-tests"  # noqa: S105 - nobody else has it
NAMES: Final = ("localhost", "127.0.0.1")
URI: Final = "statehouse://tests/all"
HOURS: Final = 1.0
"""After which the certificate of the caller who is to expire holds no longer; those of others hold a day."""
LEEWAY_S: Final = 30
"""For which a JSON web token counts beyond its end. That of the caller "ends" counts for a second and a half."""

REFUSED: Final = "refused"
"""A gate refuses the call: the caller learns it, and it is logged and counted."""
NO_CONNECTION: Final = "no connection"
"""The handshake fails: there is no call that anybody could refuse."""
SERVED: Final = "served"


def outcome_of(gate: str, caller: str) -> str | None:
    """Return what becomes of a call; None: there is no such caller.

    Where nobody says what has been revoked, nothing has. A token of the rules has no end.
    """
    by_certificate = gate in {"tls_ca", "tls_crl", "rules"}
    match caller:
        case "right":
            return SERVED
        case "nothing":
            return NO_CONNECTION if by_certificate else REFUSED
        case "wrong":  # another CA's certificate; a token that nobody knows; one that another issuer has signed
            return NO_CONNECTION if by_certificate else REFUSED
        case "expired":
            return None if gate == "tokens" else REFUSED
    return {"tls_ca": None, "tls_crl": REFUSED}.get(gate, REFUSED)


@dataclass
class GateCase:
    """The files of one kind of gate, in `folder`, and what callers show to it."""

    gate: str
    folder: Path
    authority: Authority = field(init=False)
    issued: dict[str, Issued] = field(init=False)
    tokens: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.authority = Authority(self.folder, "house")
        foreign = Authority(self.folder, "foreign")
        self.server = self.authority.issue(NAMES)
        self.issued = {
            "right": self.authority.issue(NAMES, (URI,)),
            "expired": self.authority.issue(NAMES, (URI,), hours=HOURS),
            "revoked": self.authority.issue(NAMES, (URI if self.gate == "tls_crl" else "statehouse://tests/gone",)),
            "wrong": foreign.issue(NAMES, (URI,)),
        }
        issuer, other = TokenIssuer(), TokenIssuer()
        issuer.write_keys(self.folder / "jwks.json")
        static = self.gate == "tokens"
        self.tokens = {
            "right": TOKEN if static else issuer.token(lasts_s=86_400),
            "expired": issuer.token(lasts_s=-2 * LEEWAY_S),
            "ends": issuer.token(lasts_s=1.5 - LEEWAY_S),
            "revoked": "was-once" if static else issuer.token(sub="gone@house"),
            "wrong": "nobodys" if static else other.token(),
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of a process with this gate, and no other."""
        tls = {"tls_certificate": self.server.certificate_path, "tls_key": self.server.key_path}
        ca = {"tls_ca": self.authority.path}
        match self.gate:
            case "tls_ca":
                return tls | ca
            case "tls_crl":
                return tls | ca | {"tls_crl": self.authority.crl((self.issued["revoked"],))}
            case "rules":
                return tls | ca | {"security_rules": self._rules(f'certificates = ["{URI}"]')}
            case "tokens":
                digest = hashlib.sha256(TOKEN.encode()).hexdigest()
                return tls | {"security_rules": self._rules(f'token_sha256 = ["{digest}"]')}
        jwt = f'[jwt]\nkeys = "jwks.json"\nalgorithms = ["ES256"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
        jwt += f"leeway_s = {LEEWAY_S}\n"
        return tls | {"security_rules": self._rules(f'jwt_subjects = ["reports@house"]\n{jwt}')}

    def _rules(self, known_by: str) -> Path:
        path = self.folder / "rules.toml"
        path.write_text(f'[[identity]]\nname = "all"\nroles = ["reader", "operator", "node"]\n{known_by}\n')
        return path

    def certificate_of(self, caller: str) -> Issued | None:
        """Return the certificate that a caller shows, if callers show one to this gate."""
        return self.issued.get(caller) if self.gate in {"tls_ca", "tls_crl", "rules"} else None

    def token_of(self, caller: str) -> str | None:
        """Return the token that a caller shows, likewise."""
        return self.tokens.get(caller) if self.gate in {"tokens", "jwt"} else None
