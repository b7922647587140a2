"""What a caller shows over TLS, and whom it trusts: files, read anew when they change. Needs grpcio only."""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from statehouse.errors import ConfigurationError
from statehouse.runtime.file_reads import PEM_BYTES_MAX, load_ca, load_pair, read
from statehouse.security.changed_files import ChangedFiles

log = logging.getLogger(__name__)

VARIABLES: Final = {
    "ca": "STATEHOUSE_TLS_CA",
    "certificate": "STATEHOUSE_TLS_CERTIFICATE",
    "key": "STATEHOUSE_TLS_KEY",
    "token": "STATEHOUSE_TOKEN_FILE",
    "server_name": "STATEHOUSE_TLS_SERVER_NAME",
}
"""The variable of each field of `ClientTls`."""


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How to call servers over TLS. The files are read anew when they change, without a call failing.

    Attributes:
        ca: file with the certificates, in PEM, of the CAs that servers' certificates come from. None: the public CAs.
        certificate: file with the certificate to show, in PEM, and those between it and the CA's.
        key: file with its private key, in PEM, without a password.
        token: file with a bearer token to send with each call.
        server_name: a name that servers' certificates have, to check in place of the host that is called.

    Raises:
        ConfigurationError: a certificate without a key, or a key without a certificate.

    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    token: Path | None = None
    server_name: str = ""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("a TLS certificate and its key go together: give both or none")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> ClientTls | None:
        """Return what the variables STATEHOUSE_TLS_CA and so on say, as on the command line; None if they are not set.

        Raises:
            ConfigurationError: they don't go together.

        """
        return cls.from_texts({field: environment.get(variable, "") for field, variable in VARIABLES.items()})

    @classmethod
    def from_texts(cls, given: Mapping[str, str]) -> ClientTls | None:
        """Return what is given as text, by field; None if nothing is.

        Raises:
            ConfigurationError: the texts don't go together.

        """
        if not any(given.values()):
            return None
        if not given["ca"]:
            raise ConfigurationError(
                "calls are encrypted, and a certificate or token is shown, only if it is known which servers to trust: "
                f"give --tls-ca or {VARIABLES['ca']}, too"
            )
        files = {name: Path(given[name]).expanduser() for name in ("ca", "certificate", "key", "token") if given[name]}
        return cls(**files, server_name=given["server_name"])


class CredentialFiles:
    """The files of a `ClientTls` as gRPC takes them. Lives on one thread; gRPC's own threads take the token.

    If changed files can't be used, the present ones count until they change again: somebody may be writing them.
    """

    def __init__(self, tls: ClientTls, clock: Callable[[], float] = time.monotonic) -> None:
        """Read the files.

        Raises:
            ConfigurationError: a file can't be read, or holds something else.

        """
        self.tls = tls
        self._version = 1
        # The files' state is noted before they are read: if one changes meanwhile, they are read once more.
        self._files = ChangedFiles((tls.ca, tls.certificate, tls.key), clock)
        self._token_file = ChangedFiles((tls.token,), clock)
        self.token = _read_token(tls.token)
        """The bearer token; "" if there is none."""
        self.credentials = self._load()

    @property
    def version(self) -> int:
        """A number that grows when the files have changed: then `credentials` are others, for new channels."""
        try:
            if self._token_file.have_changed():
                self.token = _read_token(self.tls.token)
            if self._files.have_changed():
                self.credentials = self._load()
                self._version += 1
        except ConfigurationError as error:
            log.warning("what was read before stays in use: %s", error)
        return self._version

    def _load(self) -> grpc.ChannelCredentials:
        tls = self.tls
        ca, key, certificate = (_read(path) for path in (tls.ca, tls.key, tls.certificate))
        _check(tls)
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        if tls.token is None:
            return credentials
        return grpc.composite_channel_credentials(credentials, grpc.metadata_call_credentials(_Bearer(self)))


class _Bearer(grpc.AuthMetadataPlugin):
    """Adds the token to calls. gRPC has a reference to it for as long as a channel is open."""

    def __init__(self, files: CredentialFiles) -> None:
        self._files = files

    def __call__(self, _context: grpc.AuthMetadataContext, show: grpc.AuthMetadataPluginCallback) -> None:
        show((("authorization", f"Bearer {self._files.token}"),), None)


def _read(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        return read(path, PEM_BYTES_MAX)
    except OSError as error:
        raise ConfigurationError(f"can't read {path}: {error.strerror}") from error


def _read_token(path: Path | None) -> str:
    token = (_read(path) or b"").strip()
    if path is not None and (not token or not all(0x21 <= byte <= 0x7E for byte in token)):
        raise ConfigurationError(f"{path} holds no token: it must have one line without spaces")
    return token.decode("ascii")


def ssl_context(tls: ClientTls) -> ssl.SSLContext:
    """Return what a client that calls over HTTP needs: whom it trusts, and what it shows.

    Raises:
        OSError: a file can't be read, or holds nothing of the kind.

    """
    context = ssl.create_default_context() if tls.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca is not None:
        load_ca(context, tls.ca)
    if tls.certificate is not None and tls.key is not None:
        load_pair(context, tls.certificate, tls.key)
    return context


def _check(tls: ClientTls) -> None:
    """Refuse what gRPC would only notice in a call, and say nothing of."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if tls.ca is not None:
            load_ca(context, tls.ca)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(f"{tls.ca} holds no certificates in PEM: {error.strerror}") from error
    try:
        if tls.certificate is not None and tls.key is not None:
            load_pair(context, tls.certificate, tls.key)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{tls.certificate} and {tls.key} are no certificate and its key, in PEM and without a password ({error})"
        ) from error
