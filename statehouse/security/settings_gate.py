"""What a gate is, and the gate that the settings ask for. All code that lets callers in asks here.

Without a gate none of its libraries is loaded: they take a fifth of a start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from statehouse.errors import Reason
from statehouse.settings import TlsSettings

if TYPE_CHECKING:
    from statehouse.security.gate import Gate


def gates_named(settings: TlsSettings) -> tuple[str, ...]:
    """Return the names of the settings by which callers are judged, call by call; none: everybody may do everything.

    Also a CA alone is a gate: a certificate holds for a time, and connections last longer. Tokens and JSON web tokens
    are part of the rules. A CA that only servers are checked with, because callers show nothing, is none.
    """
    given = {
        "security_rules": settings.security_rules is not None,
        "tls_crl": settings.tls_crl is not None,
        "tls_ca": settings.callers_certificates != "none",
    }
    return tuple(name for name, is_gate in given.items() if is_gate)


def gate_for(
    settings: TlsSettings, on_denied: Callable[[Reason], None], on_unusable: Callable[[], None]
) -> Gate | None:
    """Return the gate that the settings ask for; None if everybody may do everything.

    Raises:
        ConfigurationError: as `Gate`.

    """
    if not gates_named(settings):
        return None
    from statehouse.security.gate import Gate  # noqa: PLC0415 - see above

    files = (settings.security_rules, settings.tls_ca, settings.tls_crl)
    found = [None if each is None else each.expanduser() for each in files]
    return Gate(*found, on_denied=on_denied, on_unusable=on_unusable)
