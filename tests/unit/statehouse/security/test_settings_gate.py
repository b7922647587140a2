"""What a gate is: the settings by which callers are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statehouse.security.settings_gate import gate_for, gates_named
from statehouse.settings import RouterSettings

CERTIFICATE: dict[str, Any] = {"tls_certificate": Path("c.pem"), "tls_key": Path("c.key")}
CA: dict[str, Any] = {**CERTIFICATE, "tls_ca": Path("ca.pem")}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({}, ()),
        (CERTIFICATE, ()),
        ({**CA, "tls_callers": "none"}, ()),
        (CA, ("tls_ca",)),
        ({**CA, "tls_callers": "optional"}, ("tls_ca",)),
        ({**CA, "tls_crl": Path("crl.pem")}, ("tls_crl", "tls_ca")),
        ({**CERTIFICATE, "security_rules": Path("rules.toml")}, ("security_rules",)),
        ({**CA, "tls_callers": "none", "security_rules": Path("rules.toml")}, ("security_rules",)),
        ({**CA, "tls_callers": "none", "tls_crl": Path("crl.pem")}, ("tls_crl",)),
    ],
)
def test_what_callers_are_judged_by(given: dict[str, Any], names: tuple[str, ...]) -> None:
    settings = RouterSettings(application_id="tests", **given)
    assert gates_named(settings) == names
    if not names:
        assert gate_for(settings, lambda _reason: None, lambda: None) is None
