"""Signatures of the records of control topics: what is signed, and with what. Pure.

A signature is for one topic, key and value, so a record can't be moved or altered. It has when it was signed, and a
number in the writer's run, so that an older record which is written again is known by both.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from google.protobuf.message import DecodeError

from statehouse.control.v1 import signatures_pb2
from statehouse.errors import ConfigurationError, ContractError
from statehouse.errors.checked import checked_count, checked_list, checked_record, checked_time_ms
from statehouse.security.certificates import UNREADABLE

CERTIFICATES_MAX: Final = 8
_HEADER_MAX: Final = 65_536
RUN_BYTES: Final = 8
_DOMAIN: Final = b"statehouse control record 1\0"
_LENGTH: Final = struct.Struct(">I")
_NOTHING: Final = b"\xff\xff\xff\xff"
"""In place of the length of what isn't there; no record is so long."""
_NUMBERS: Final = struct.Struct(">QQ")
_PSS: Final = padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH)

PrivateKey: TypeAlias = (
    rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)


class ControlRecord(NamedTuple):
    """What is signed: a record of a topic. `value`: None is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None


class RecordSigner:
    """Signs records with a process's key. Thread-safe.

    `certificates`: the key's, and those between it and the CA's; `key`: PEM, without a password.
    `run`: RUN_BYTES random ones.

    Raises:
        ConfigurationError: they can't be read, don't belong together, or the key is of a kind that signs nothing.

    """

    def __init__(self, certificates: bytes, key: bytes, run: bytes) -> None:
        try:
            chain = x509.load_pem_x509_certificates(certificates)[:CERTIFICATES_MAX]
            found = load_pem_private_key(key, None)
        except UNREADABLE as error:
            raise ConfigurationError(f"records can't be signed with tls_certificate and tls_key: {error}") from None
        if not isinstance(found, PrivateKey):
            raise ConfigurationError("records can't be signed with tls_key: take an RSA, EC or Ed25519 key")
        if found.public_key() != chain[0].public_key():
            raise ConfigurationError("tls_certificate and tls_key don't belong together: records can't be signed")
        self._key: PrivateKey = found
        self._chain = [each.public_bytes(Encoding.DER) for each in chain]
        self._run, self._numbers = run, itertools.count(1)

    def header(self, record: ControlRecord, now_ms: int) -> bytes:
        """Return the header that says who writes this record. `now_ms`: epoch milliseconds."""
        signature = signatures_pb2.RecordSignature(
            certificates=self._chain, signed_at_ms=max(0, now_ms), run=self._run, number=next(self._numbers)
        )
        signature.signature = _signed(self._key, _content(record, signature))
        return signature.SerializeToString()


def read_signature(header: bytes) -> signatures_pb2.RecordSignature:
    """Read a header.

    Raises:
        ContractError: it is none, or a field can't be true.

    """
    try:
        signature = signatures_pb2.RecordSignature.FromString(checked_record(header, _HEADER_MAX))
    except DecodeError as error:
        raise ContractError(f"its signature can't be read: {error}") from error
    checked_list("certificates", signature.certificates, CERTIFICATES_MAX)
    checked_time_ms("signed_at_ms", signature.signed_at_ms)
    checked_count("number of the signature", signature.number)
    if not signature.certificates or len(signature.run) != RUN_BYTES:
        raise ContractError("its signature has no certificate, or no run of a process")
    return signature


def check_signature(record: ControlRecord, signature: signatures_pb2.RecordSignature, leaf: x509.Certificate) -> None:
    """Return if the key of a certificate has signed a record.

    Raises:
        ContractError: it hasn't.

    """
    content, given = _content(record, signature), signature.signature
    try:
        key = leaf.public_key()
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(given, content, _PSS, SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(given, content, ec.ECDSA(SHA256()))
        elif isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
            key.verify(given, content)
        else:
            raise ContractError("its certificate's key is of a kind that signs no records")
    except (*UNREADABLE, InvalidSignature):
        raise ContractError("its signature is not of this record, by its certificate's key") from None


def _signed(key: PrivateKey, content: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, _PSS, SHA256())
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(SHA256()))
    return key.sign(content)


def _content(record: ControlRecord, signature: signatures_pb2.RecordSignature) -> bytes:
    parts: Sequence[bytes | None] = (
        record.topic.encode(),
        record.key,
        record.value,
        hashlib.sha256(signature.certificates[0]).digest(),
        signature.run,
    )
    said = b"".join(_NOTHING if part is None else _LENGTH.pack(len(part)) + part for part in parts)
    return _DOMAIN + said + _NUMBERS.pack(signature.signed_at_ms, signature.number)
