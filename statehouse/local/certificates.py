"""A CA and certificates for development: for `statehouse certs`, `statehouse up --tls`, and to try revocation.

The CA's key lies beside what it has signed, so anybody with access to the directory can be anybody. Not for production.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from statehouse.errors import ConfigurationError

ROLES: Final = {
    "router": ("router",),
    "node": ("node",),
    "processor": ("node", "processor"),
    # An operator of a fleet looks into its stores, too, and so does the command line.
    "operator": ("operator", "reader"),
    "reader": ("reader",),
    "health": ("health",),
}
"""Who gets a certificate, and the roles of each in rules.toml."""
_SERVERS: Final = frozenset({"router", "node", "processor"})
"""Whose certificates a server may show. The others are a caller's only: who has one can't pretend to be a node."""
CA: Final = "ca"
RULES: Final = "rules.toml"
CRL: Final = "crl.pem"
DEFAULT_DAYS: Final = 30

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
# Clocks differ.
_BEFORE: Final = timedelta(hours=1)
_NEARLY_OVER: Final = timedelta(days=1)
_READERS: Final = frozenset({"reader"})


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        """The certificate as a file has it."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key as a file has it, without a password."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def new_ca(now: datetime, days: int) -> KeyPair:
    """Return a new CA that signs itself and is valid for so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Statehouse development CA")
    certificate = (
        _builder(name, name, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, SHA256())
    )
    return KeyPair(certificate, key)


def issue(ca: KeyPair, name: str, hosts: Iterable[str], now: datetime, days: int) -> KeyPair:
    """Return a new certificate for `statehouse://dev/<name>`, of a server on these hosts: names or IP addresses.

    Raises:
        ConfigurationError: a host is neither.

    """
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity_uri(name))]
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if name in _SERVERS:
        names += map(_alternative, dict.fromkeys(hosts))
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    certificate = (
        _builder(_name(name), ca.certificate.subject, key.public_key(), now, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(_issued_by(ca), critical=False)
        .sign(ca.key, SHA256())
    )
    return KeyPair(certificate, key)


def revocation_list(
    ca: KeyPair, revoked: Iterable[x509.RevokedCertificate], number: int, now: datetime
) -> x509.CertificateRevocationList:
    """Return the CA's signed list of revoked certificates, valid for as long as the CA is."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.certificate.subject)
        .last_update(now - _BEFORE)
        .next_update(ca.certificate.not_valid_after_utc)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_issued_by(ca), critical=False)
    )
    for each in revoked:
        builder = builder.add_revoked_certificate(each)
    return builder.sign(ca.key, SHA256())


def identity_uri(name: str) -> str:
    """Return the URI that a development certificate has for an identity."""
    return f"statehouse://dev/{name}"


def rules() -> str:
    """Return the rules that give each identity its roles, as the setting security_rules takes them."""
    return "\n".join(map(_identity, ROLES))


def make_certificates(
    folder: Path, hosts: Sequence[str] = (), days: int = DEFAULT_DAYS, *, force: bool = False
) -> list[Path]:
    """Make a CA, an empty list of revoked certificates, the certificates and the rules; return the files.

    `hosts`: where servers run, in addition to this machine. `force`: everything that is there is made anew.

    Raises:
        ConfigurationError: a file is there already, or can't be written, or a host is no name.

    """
    now = datetime.now(UTC)
    ca = new_ca(now, days)
    # A process reads a certificate anew when its file changes, so its key is there first.
    files = {f"{CA}.key": ca.key_pem}
    for name in ROLES:
        issued = issue(ca, name, (*_LOOPBACK, *hosts), now, days)
        files |= {f"{name}.key": issued.key_pem, f"{name}.pem": issued.certificate_pem}
    files |= {
        CRL: revocation_list(ca, (), 1, now).public_bytes(Encoding.PEM),
        RULES: rules().encode(),
        f"{CA}.pem": ca.certificate_pem,
    }
    there = [name for name in files if (folder / name).exists()]
    if there and not force:
        raise ConfigurationError(f"{folder / there[0]} is there already; --force makes all certificates anew")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            _write(folder / name, content)
    except OSError as error:
        raise ConfigurationError(f"can't write to {folder}: {error.strerror}") from error
    return [folder / name for name in files]


def revoke(folder: Path, name: str) -> None:
    """Add an identity's present certificate to the list of revoked ones; it stays there for as long as the CA is valid.

    Raises:
        ConfigurationError: `folder` isn't one of `make_certificates`, or has no such certificate.

    """
    if name not in ROLES:
        raise ConfigurationError(f"no certificate {name!r} in {folder}; there are: {', '.join(ROLES)}")
    now = datetime.now(UTC)
    try:
        ca = _load(folder, CA)
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
        known = x509.load_pem_x509_crl((folder / CRL).read_bytes())
        if known.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
            return
        entry = x509.RevokedCertificateBuilder().serial_number(certificate.serial_number).revocation_date(now).build()
        number = known.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
        renewed = revocation_list(ca, [*known, entry], number + 1, now)
        _write(folder / CRL, renewed.public_bytes(Encoding.PEM))
    except OSError as error:
        raise ConfigurationError(
            f"{folder} has no development certificates ({error}); `statehouse certs dev {folder}` makes some"
        ) from error
    except (ValueError, x509.ExtensionNotFound) as error:
        raise ConfigurationError(f"{folder} has a damaged file ({error}); make all anew with --force") from error


def are_current(folder: Path) -> bool:
    """Whether a folder has certificates that are valid for another day."""
    try:
        ca = x509.load_pem_x509_certificate((folder / f"{CA}.pem").read_bytes())
    except (OSError, ValueError):
        return False
    return ca.not_valid_after_utc - datetime.now(UTC) > _NEARLY_OVER


def _identity(name: str) -> str:
    roles = ", ".join(f'"{role}"' for role in ROLES[name])
    lines = ["[[identity]]", f'name = "{name}"', f'certificates = ["{identity_uri(name)}"]', f"roles = [{roles}]"]
    if _READERS & set(ROLES[name]):
        lines += ['stores = ["*"]', 'also = ["fleet"]']
    return "\n".join(lines) + "\n"


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued_by(ca: KeyPair) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.removeprefix("*.").split(".")
    if not all(label.isascii() and label.replace("-", "").isalnum() and len(label) < 64 for label in labels):
        raise ConfigurationError(f"{host!r} is neither a host's name nor an IP address")
    return x509.DNSName(host)


def _load(folder: Path, name: str) -> KeyPair:
    key = load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{name}.key is no key of an elliptic curve")  # noqa: TRY004 - the file is damaged
    return KeyPair(x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes()), key)


def _write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; a key for its owner only."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.unlink(missing_ok=True)
    scratch.touch(0o600 if path.suffix == ".key" else 0o644)
    scratch.write_bytes(content)
    scratch.replace(path)
