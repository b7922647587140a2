"""Tokens of forms that change something: only a page of this server can have one (a signed double submit). Pure.

A page gets a random cookie, and its forms the cookie's signature. Another site's page can have a browser send the
cookie, but can't read it, and can't sign.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final

COOKIE: Final = "statehouse_form"
FIELD: Final = "csrf_token"
_COOKIE: Final = re.compile(r"[A-Za-z0-9_-]{43}")
SECRET_BYTES: Final = 32


def token_of(secret: bytes, cookie: str) -> str:
    """Return the token of forms for the browser that has this cookie."""
    digest = hmac.digest(secret, b"statehouse-form:" + cookie.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def is_cookie(text: str | None) -> bool:
    """Whether a cookie is one of ours: then a page need not set another one."""
    return text is not None and _COOKIE.fullmatch(text) is not None


def is_valid(secret: bytes, cookie: str | None, token: str | None) -> bool:
    """Whether a form's token fits its cookie; compared in constant time."""
    if cookie is None or token is None or not is_cookie(cookie):
        return False
    return hmac.compare_digest(token_of(secret, cookie).encode(), token.encode(errors="replace"))
