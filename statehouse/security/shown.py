"""What a caller shows of themselves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Shown:
    """What a caller shows, not yet believed.

    Attributes:
        certificate: the caller's certificate, in DER; empty if there is none. The handshake has verified that a CA of
            ours signed it.
        authorization: the value of the metadata `authorization`; empty if there is none. Never to be printed.
        address: where the call comes from, for people.
        on_behalf: whose call this is, if the caller makes it for somebody else: the other's certificate, in DER. It
            counts only from those who may forward.

    """

    certificate: bytes = b""
    authorization: str = ""
    address: str = ""
    on_behalf: bytes = b""

    def __repr__(self) -> str:
        """Show the address only: logs and tracebacks must not have secrets."""
        return f"Shown(address={self.address!r})"


NOTHING_SHOWN: Final = Shown()
"""Of callers whom nobody asks who they are."""
