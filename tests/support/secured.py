"""What a fleet with TLS and rules is made of: a CA, a certificate for each identity, a list of revoked ones, rules."""

from __future__ import annotations

import hashlib
import http.client
import ssl
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import grpc

from statehouse.local.ports import LOOPBACK
from tests.support.certificates import Authority, Issued
from tests.support.fleet import NAME, STORE
from tests.support.metrics import Scrape, parsed

TOKEN: Final = "a-token-of-tests"  # noqa: S105 - nobody else has it
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "reader": {"roles": ["reader"], "stores": [STORE]},
    "other": {"roles": ["reader"], "stores": ["others"]},
    "looker": {"roles": ["reader"], "stores": [STORE], "only": ["lookup"]},
    "operator": {"roles": ["operator"]},
    "health": {"roles": ["health"]},
    "router": {"roles": ["router"]},
    "node": {"roles": ["node"]},
    "all": {"roles": ["reader", "operator"]},
    "bearer": {"roles": ["reader"], "stores": [STORE], "token_sha256": [hashlib.sha256(TOKEN.encode()).hexdigest()]},
}


def uri(name: str) -> str:
    """Return the URI in the certificates of an identity."""
    return f"statehouse://tests/{name}"


class Keys:
    """The files of a secured fleet, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder, "house")
        self.issued = {name: self.issue(name) for name in RULES}
        self.rules = folder / "rules.toml"
        self.crl = folder / "revoked.pem"
        self.revoke()
        self.write_rules(RULES)

    def issue(self, name: str, *, expired: bool = False) -> Issued:
        """Return a further certificate of an identity."""
        return self.authority.issue((NAME, LOOPBACK), (uri(name),), expired=expired)

    def rotate(self, identity: str) -> Issued:
        """Put a new certificate in place of an identity's; return the one before, in other files."""
        mine = self.issued[identity]
        before = Issued(mine.certificate_path.with_suffix(".before"), mine.key_path)
        before.certificate_path.write_bytes(mine.certificate_path.read_bytes())
        mine.replace(self.issue(identity))
        return before

    def revoke(self, *certificates: Issued) -> None:
        """Replace the list of revoked certificates."""
        self.authority.crl(certificates).replace(self.crl)

    def write_rules(self, rules: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the rules: by an identity's name its entry, to which its certificate is added."""
        lines: list[str] = []
        for name, entry in rules.items():
            lines += ["[[identity]]", f'name = "{name}"']
            lines += [f"{key} = {list(value)!r}" for key, value in {"certificates": [uri(name)], **entry}.items()]
        written = self.rules.with_suffix(".new")
        written.write_text("\n".join(lines) + "\n")
        written.replace(self.rules)

    def options(self, identity: str, **more: object) -> dict[str, Any]:
        """Return the options of a process that is this identity."""
        mine = self.issued[identity]
        return {
            "tls_certificate": mine.certificate_path,
            "tls_key": mine.key_path,
            "tls_ca": self.authority.path,
            "tls_crl": self.crl,
            "security_rules": self.rules,
            **more,
        }

    def scraped(self, port: int) -> Scrape:
        """Return the metrics of a process of this fleet."""
        context = ssl.create_default_context(cafile=str(self.authority.path))
        mine = self.issued["operator"]
        context.load_cert_chain(mine.certificate_path, mine.key_path)
        with closing(http.client.HTTPSConnection(LOOPBACK, port, timeout=10.0, context=context)) as at:
            at.request("GET", "/metrics")
            return parsed(at.getresponse().read().decode())

    def credentials(self, identity: str) -> grpc.ChannelCredentials:
        """Return what a caller shows who is this identity."""
        return self.showing(self.issued[identity])

    def showing(self, certificate: Issued | None, token: str | None = None) -> grpc.ChannelCredentials:
        """Return what a caller shows with this certificate and token."""
        pair: Iterable[bytes | None] = (None, None)
        if certificate is not None:
            pair = certificate.key_path.read_bytes(), certificate.certificate_path.read_bytes()
        channel = grpc.ssl_channel_credentials(self.authority.path.read_bytes(), *pair)
        if token is None:
            return channel
        return grpc.composite_channel_credentials(channel, grpc.access_token_call_credentials(token))
