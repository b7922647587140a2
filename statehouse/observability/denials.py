"""Counts the calls that are denied, and changed files of rules that can't be used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from statehouse.errors import Reason
from statehouse.security.draining import is_loopback
from statehouse.security.settings_gate import gate_for
from statehouse.settings.common import ListenSettings

if TYPE_CHECKING:
    from statehouse.security.gate import Gate


log = structlog.get_logger(__name__)


class SecurityMetrics:
    """What a process counts of its rules, in metrics whose names begin with `prefix`. Any thread may count."""

    def __init__(self, registry: CollectorRegistry, prefix: str) -> None:
        self._denials = Counter(
            f"{prefix}_denials", "Calls and scrapes denied by the rules", ("reason",), registry=registry
        )
        self._unusable = Counter(
            f"{prefix}_unusable_security_files", "Changes of rules or lists that can't be used", registry=registry
        )
        self._age = Gauge(
            f"{prefix}_security_files_age_seconds",
            "Time since the rules, keys and lists of revoked certificates were last looked at",
            registry=registry,
        )

    def denied(self, reason: Reason) -> None:
        """Count a call, or a scrape, that is denied."""
        self._denials.labels(reason.name).inc()

    def unusable(self) -> None:
        """Count a change of the files that can't be used."""
        self._unusable.inc()

    def watch(self, gate: Gate) -> None:
        """Show when a gate has last looked at its files."""
        self._age.set_function(lambda: gate.unseen_s)


def say_if_open(settings: ListenSettings) -> None:
    """Warn if any client that reaches this machine can read what is sent, and do what it likes."""
    host = settings.bind_host.strip("[]").lower()
    if settings.tls_certificate is None and host != "localhost" and not is_loopback(host):
        log.warning(
            "ports are open beyond this machine, without encryption: set tls_certificate and tls_key, and "
            "security_rules, or bind_host to 127.0.0.1, or let only networks reach them that are trusted",
            bind_host=settings.bind_host,
        )


def counted_gate(settings: ListenSettings, metrics: SecurityMetrics) -> Gate | None:
    """Return the gate that the settings ask for, whose denials are counted; None if there is none.

    An operator with TLS may think that others are kept out: where there are no rules, a warning says that they aren't.

    Raises:
        ConfigurationError: a file is wrong, or can't be read.

    """
    say_if_open(settings)
    if settings.tls_certificate is not None and settings.security_rules is None:
        needs_certificate = settings.callers_certificates == "required"
        who = "whoever has a certificate of a CA in tls_ca" if needs_certificate else "everybody"
        log.warning("there are no rules, so callers may do everything: set security_rules", who=who)
    gate = gate_for(settings, metrics.denied, metrics.unusable)
    if gate is not None:
        metrics.watch(gate)
    return gate
