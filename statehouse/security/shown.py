"""What a caller shows of themselves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shown:
    """What a caller shows, not yet believed.

    Attributes:
        certificate: the caller's certificate, in DER, and after it those that were shown with it, on the way to the
            CA's; empty if there is none. The handshake has verified, when it was, that they lead to a CA of ours.
        authorization: the value of the metadata `authorization`; empty if there is none. Never to be printed.
        address: where the call comes from, for people.
        on_behalf: whose call this is, if the caller makes it for somebody else: the other's certificate, in the same
            form. Nobody has verified it, and anybody may have a copy: it counts only from callers that may forward,
            only if it leads to a CA of ours now, and only for reads unless the caller may act for others.

    """

    certificate: bytes = b""
    authorization: str = ""
    address: str = ""
    on_behalf: bytes = b""

    def __repr__(self) -> str:
        """Show the address only: logs and tracebacks must not have secrets."""
        return f"Shown(address={self.address!r})"


NOTHING_SHOWN: Final = Shown()
"""Used for unauthenticated callers."""
