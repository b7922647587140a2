"""The gate that the settings ask for. Without one, none of its libraries is loaded: they take a fifth of a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from statehouse.errors import Reason
from statehouse.settings import TlsSettings

if TYPE_CHECKING:
    from statehouse.security.gate import Gate


def gate_for(
    settings: TlsSettings, on_denied: Callable[[Reason], None], on_unusable: Callable[[], None]
) -> Gate | None:
    """Return the gate that the settings ask for; None if everybody may do everything.

    Raises:
        ConfigurationError: as `Gate`.

    """
    if settings.security_rules is None and settings.tls_crl is None:
        return None
    from statehouse.security.gate import Gate  # noqa: PLC0415 - see above

    files = (settings.security_rules, settings.tls_ca, settings.tls_crl)
    found = [None if each is None else each.expanduser() for each in files]
    return Gate(*found, on_denied=on_denied, on_unusable=on_unusable)
