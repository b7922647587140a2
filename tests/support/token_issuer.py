"""Issues tokens to clients that show id and secret, as the token endpoint of an identity provider does."""

from __future__ import annotations

import base64
import json
import time
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Self

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.support.http_server import served

_KEY_ID = "test"


class TokenIssuer:
    """Serves while its context lasts; `keys` gets the public key that tokens are checked with."""

    def __init__(self, keys: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
        public = RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        keys.write_text(json.dumps({"keys": [{**public, "kid": _KEY_ID, "use": "sig", "alg": "RS256"}]}))
        self.secrets: dict[str, str] = {}
        """The clients' secrets, by their ids."""
        self.url = ""
        """Where tokens are asked for, once it serves."""
        self._serving = ExitStack()

    def __enter__(self) -> Self:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                shown = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                client, _, secret = shown.partition(":")
                is_known = issuer.secrets.get(client) == secret
                answer = {"access_token": issuer.token(client)} if is_known else {"error": "invalid_client"}
                body = json.dumps(answer).encode()
                self.send_response(200 if is_known else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.url = self._serving.enter_context(served(Handler)) + "/token"
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.close()

    def token(self, subject: str) -> str:
        now = int(time.time())
        claims = {"sub": subject, "aud": "kafka", "iat": now, "exp": now + 3600}
        return jwt.encode(claims, self._key, algorithm="RS256", headers={"kid": _KEY_ID})
