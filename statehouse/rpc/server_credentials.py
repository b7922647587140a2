"""The credentials of a grpcio server, made of files that are read anew when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import PEM_BYTES_MAX, read
from statehouse.security.server_tls import RenewedTls, server_context
from statehouse.settings import TlsSettings


def server_credentials(settings: TlsSettings) -> grpc.ServerCredentials:
    """Return the credentials of these settings, which name a certificate. Handshakes after a change use the new files.

    Raises:
        ConfigurationError: a file can't be used, or grpcio can't do what is asked.

    """
    if settings.callers_certificates == "optional":
        raise ConfigurationError(
            "tls_callers = optional needs the proxy: grpcio either demands certificates or asks for none; build the "
            "proxy (make tools), or take required or none"
        )
    renewed = RenewedTls(settings, _configuration)

    def newer() -> Any:  # noqa: ANN401 - None is what grpcio wants when nothing has changed, and its stubs refuse
        return renewed.made if renewed.renew() else None

    return grpc.dynamic_ssl_server_credentials(
        renewed.made, newer, require_client_authentication=settings.callers_certificates == "required"
    )


def _configuration(settings: TlsSettings) -> grpc.ServerCertificateConfiguration:
    """Read the files; what grpcio would refuse later, with a message that helps nobody, is refused here."""
    server_context(settings)
    assert settings.tls_certificate is not None and settings.tls_key is not None  # noqa: S101, PT018 - see above
    pair = (_pem(settings.tls_key), _pem(settings.tls_certificate))
    roots = None if settings.tls_ca is None else _pem(settings.tls_ca)
    return grpc.ssl_server_certificate_configuration([pair], roots)


def _pem(path: Path) -> bytes:
    return read(path.expanduser(), PEM_BYTES_MAX)
