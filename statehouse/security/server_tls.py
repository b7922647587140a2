"""The certificate that a server shows, for servers of Python's; the proxy reads the same files on its own."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import structlog

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import load_ca, load_pair
from statehouse.security.changed_files import ChangedFiles
from statehouse.settings import TlsSettings

log = structlog.get_logger(__name__)

T = TypeVar("T")

_DER: Final = 2
"""A form of certificates, as OpenSSL counts them."""
_ASKED = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context of a server with these settings, which name a certificate.

    Raises:
        ConfigurationError: a file can't be read, or does not hold what it should.

    """
    assert settings.tls_certificate is not None and settings.tls_key is not None  # noqa: S101, PT018 - see above
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = settings.tls_certificate.expanduser(), settings.tls_key.expanduser()
    try:
        load_pair(context, certificate, key)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"tls_certificate {certificate} and tls_key {key} can't be used: {error}; they must be PEM files, the key "
            "without a password, and belong together"
        ) from error
    if settings.tls_ca is not None:
        ca = settings.tls_ca.expanduser()
        try:
            load_ca(context, ca)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"tls_ca {ca} can't be used: {error}; it must hold certificates in PEM") from error
    context.verify_mode = _ASKED[settings.callers_certificates]
    # A client that resumes a session shows no certificate again, and would outlive a change of the CA.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    return context


def shown_over(connection: ssl.SSLSocket | ssl.SSLObject) -> bytes:
    """Return what the other end has shown: its certificate in DER, and after it those that it has shown with it."""
    if not connection.getpeercert(binary_form=True):  # who shows nothing has no chain, not even an empty one
        return b""
    if sys.version_info >= (3, 13):
        return b"".join(connection.get_unverified_chain())
    # Python 3.11 and 3.12 have it, without a public name.
    hidden: Any = connection
    found = hidden._sslobj.get_unverified_chain()  # noqa: SLF001
    return b"".join(each.public_bytes(_DER) for each in found or ())


class RenewedTls(Generic[T]):
    """What `make` makes of a server's settings, made anew when their files change."""

    def __init__(self, settings: TlsSettings, make: Callable[[TlsSettings], T]) -> None:
        """Make it; what `make` raises passes through."""
        self._settings, self._make = settings, make
        self._files = ChangedFiles((settings.tls_certificate, settings.tls_key, settings.tls_ca))
        self.made = make(settings)
        """What the files were last made into. What can't be used leaves the one before in force."""

    def renew(self) -> bool:
        """Read the files again if they have changed; return whether `made` is new."""
        if not self._files.have_changed():
            return False
        try:
            self.made = self._make(self._settings)
        except (ConfigurationError, OSError) as error:
            log.error("changed TLS files can't be used, the ones before stay in force", error=str(error))  # noqa: TRY400
            return False
        log.info("TLS files are read anew")
        return True
