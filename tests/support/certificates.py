"""Certificates as a CA of tests issues them: EC P-256, in files."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its private key, in PEM files."""

    certificate_path: Path
    key_path: Path

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate that the file has now."""
        return x509.load_pem_x509_certificate(self.certificate_path.read_bytes())

    @property
    def der(self) -> bytes:
        """The same, as it is shown in a handshake."""
        return self.certificate.public_bytes(Encoding.DER)

    def replace(self, other: Issued) -> None:
        """Put another certificate and key into these files, each in one step, as tools that renew certificates do."""
        other.key_path.replace(self.key_path)
        other.certificate_path.replace(self.certificate_path)


class Authority:
    """A CA whose certificate is in a file. `folder`: where all files go.

    `under`: the CA that certifies this one; what this one issues stands in its file before this one's certificate. A CA
    that is to certify others has a `path_length`.
    """

    def __init__(self, folder: Path, name: str, *, under: Authority | None = None, path_length: int = 0) -> None:
        self._folder, self._name, self._is_below = folder, name, under is not None
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issued = 0
        self._crls = 0
        subject = _name(name)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        now = datetime.now(UTC)
        self.certificate: x509.Certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if under is None else under.certificate.subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=2))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key if under is None else under._key, SHA256())
        )
        self.path = folder / f"{name}.ca.pem"
        self.path.write_bytes(self.certificate.public_bytes(Encoding.PEM))

    def issue(
        self, names: Iterable[str], uris: Iterable[str] = (), *, hours: float = 24.0, expired: bool = False
    ) -> Issued:
        """Return a new certificate. The first of `names`, hosts or IP addresses, is its common name, too.

        It is valid for so many hours from now on, or has been until an hour ago.
        """
        names = list(names)
        key = ec.generate_private_key(ec.SECP256R1())
        end = datetime.now(UTC) + timedelta(hours=-1 if expired else hours)
        alternatives = [*map(_alternative, names), *map(x509.UniformResourceIdentifier, uris)]
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(names[0]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # In the past, as CAs do it, because clocks differ.
            .not_valid_before(min(end, datetime.now(UTC)) - timedelta(hours=12))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        )
        self._issued += 1
        stem = f"{self._name}.{self._issued}"
        issued = Issued(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pem = builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM)
        issued.certificate_path.write_bytes(pem + (self.path.read_bytes() if self._is_below else b""))
        issued.key_path.touch(0o600)
        issued.key_path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return issued

    def crl(self, revoked: Iterable[Issued], *, hours: float = 24.0) -> Path:
        """Return a new file with the list of these revoked certificates, which is to be renewed after so many hours."""
        now = datetime.now(UTC)
        # A list whose time is over has begun before it.
        begin = min(now, now + timedelta(hours=hours)) - timedelta(hours=1)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(begin)
            .next_update(now + timedelta(hours=hours))
        )
        for each in revoked:
            entry = x509.RevokedCertificateBuilder().serial_number(each.certificate.serial_number).revocation_date(now)
            builder = builder.add_revoked_certificate(entry.build())
        self._crls += 1
        path = self._folder / f"{self._name}.{self._crls}.crl.pem"
        path.write_bytes(builder.sign(self._key, SHA256()).public_bytes(Encoding.PEM))
        return path


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
