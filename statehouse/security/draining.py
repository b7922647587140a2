"""Calls that are taken from this machine only, where nothing says who callers are."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable
from typing import Final

from statehouse.errors import LookupFailure, Reason
from statehouse.security.audit import AuditLog
from statehouse.security.shown import Shown
from statehouse.settings import TlsSettings

DRAIN: Final = "/statehouse.v1.NodeService/Drain"
PROFILE: Final = "/statehouse.v1.NodeService/Profile"
RESTORE: Final = "/statehouse.v1.NodeService/RestoreReplica"
LOCAL_ONLY: Final = frozenset({DRAIN, PROFILE, RESTORE})
"""What changes the fleet, or takes a node's time. A caller on the machine could do that in other ways, too."""


def is_drain_local(settings: TlsSettings) -> bool:
    """Return whether these are taken from the loopback only: nothing says who callers are, and no setting allows it."""
    knows_callers = settings.security_rules is not None or settings.callers_certificates == "required"
    return not (knows_callers or settings.drain_from_anywhere)


class LocalGate:
    """Refuses calls that come from elsewhere than the loopback, and logs it. `on_denied` is called for each."""

    def __init__(self, on_denied: Callable[[Reason], None]) -> None:
        self._on_denied = on_denied
        self._audit = AuditLog(time.monotonic)

    def admit(self, method: str, request: object, shown: Shown, *, again: bool = False) -> None:  # noqa: ARG002 - of all ways to admit
        """Return if the call comes from this machine.

        Raises:
            LookupFailure: PERMISSION_DENIED, it doesn't.

        """
        if is_loopback(shown.address):
            return
        name = method.rpartition("/")[2]
        message = (
            f"{name} is taken from the machine's own loopback only, as nothing here says who callers are, and this "
            f"call comes from {shown.address[:100] or 'an unknown address'}. Call it there"
            + (", or send the node SIGTERM, which does the same" if method == DRAIN else "")
            + "; or give the fleet tls_ca or security_rules; or set drain_from_anywhere on the node"
        )
        self._on_denied(Reason.PERMISSION_DENIED)
        self._audit.denied(
            identity="unknown",
            address=shown.address,
            method=method,
            store="",
            reason=Reason.PERMISSION_DENIED,
            detail=message,
        )
        raise LookupFailure(Reason.PERMISSION_DENIED, message)


def is_loopback(address: str) -> bool:
    """Whether an address is the loopback's; an IPv4 one may be written as IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
