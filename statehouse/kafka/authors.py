"""Signs what a process writes to control topics, and judges what it reads there, by the files of its TLS.

The files are looked at again when they change. What needs `cryptography` is loaded only where there is TLS.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from statehouse.errors import ConfigurationError, ContractError
from statehouse.runtime import file_reads
from statehouse.runtime.brokers import Brokers, RecordSecurity
from statehouse.security.changed_files import LOOKED_EVERY_S, ChangedFiles

if TYPE_CHECKING:
    from statehouse.security.record_authors import Authority, RecordJudge
    from statehouse.security.record_signatures import RecordSigner

log = structlog.get_logger(__name__)

HEADER: Final = "statehouse-signature"
Headers = Sequence[tuple[str, bytes | str | None]]


class RecordSigning:
    """Signs the records of a process, if it has a certificate. Thread-safe, but for the change of files.

    Raises:
        ConfigurationError: the certificate and its key can't be used.

    """

    def __init__(self, brokers: Brokers | str) -> None:
        self._security = Brokers.of(brokers).records
        self._files = ChangedFiles(map(Path, filter(None, (self._security.certificate, self._security.key))))
        self._signer: RecordSigner | None = _signer(self._security) if self._security.certificate else None
        self.version = 0 if self._signer is None else 1
        """Grows when the certificate changes; 0 if nothing is signed."""

    def options(self, topic: str, key: bytes, value: bytes | None) -> dict[str, Any]:
        """Return what to give to a producer in addition to this record."""
        self._renew()
        if self._signer is None:
            return {}
        from statehouse.security.record_signatures import ControlRecord  # noqa: PLC0415 - see above

        header = self._signer.header(ControlRecord(topic, key, value), time.time_ns() // 1_000_000)
        return {"headers": [(HEADER, header)]}

    def _renew(self) -> None:
        if self._signer is None or not self._files.have_changed():
            return
        try:
            self._signer = _signer(self._security)
        except ConfigurationError as error:
            log.error("a changed certificate can't sign, the one before still does", error=str(error))  # noqa: TRY400
            return
        self.version += 1


class RecordAuthors:
    """Judges the records of a control topic. Only the topic's reader uses it.

    `on_unsigned(key)` is called for each record without a signature that is taken.

    Raises:
        ConfigurationError: a file can't be used.

    """

    def __init__(self, security: RecordSecurity, topic: str, on_unsigned: Callable[[bytes | None], None]) -> None:
        from statehouse.security.files import SecurityFiles  # noqa: PLC0415 - see above
        from statehouse.security.record_authors import RecordJudge  # noqa: PLC0415 - as above

        self._topic, self._on_unsigned = topic, on_unsigned
        given = (security.rules, security.ca, security.crl)
        self._files = SecurityFiles(*(Path(each) if each else None for each in given))
        self._files.read()
        self._looked_at, self._unusable = time.monotonic(), ""
        kind = topic.rpartition("-statehouse-")[2]
        authority = self._authority()
        self._judge: RecordJudge = RecordJudge(kind, authority, is_signature_required=security.is_signature_required)
        if kind in authority.open_kinds():
            log.warning(
                "the rules give nobody the role that writes this topic: whoever has a certificate of the CA may",
                topic=topic,
            )

    def begin_anew(self) -> None:
        """Take that the topic is read from its beginning again."""
        self._judge.begin_anew()

    def timestamp_ms(
        self, key: bytes | None, value: bytes | None, headers: Headers | None, timestamp_ms: int, *, is_new: bool
    ) -> int:
        """Return the time of a record whose writer may write it: of a signed one not later than it was signed.

        `is_new`: the topic was read to its end before.

        Raises:
            ContractError: its writer may not, or it isn't known.

        """
        from statehouse.security.record_signatures import ControlRecord  # noqa: PLC0415 - see above

        self._renew()
        found = [content for name, content in headers or () if name == HEADER]
        if len(found) > 1 or not all(isinstance(each, bytes) for each in found):
            raise ContractError("it has more than one signature")
        header = next((each for each in found if isinstance(each, bytes)), None)
        signed_at_ms = self._judge.judge(ControlRecord(self._topic, key, value), header, time.time(), is_new=is_new)
        if signed_at_ms is None:
            self._on_unsigned(key)
            return timestamp_ms
        return min(timestamp_ms, int(signed_at_ms))

    def _renew(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOKED_EVERY_S:
            return
        self._looked_at = now
        if not self._files.have_changed():
            return
        unusable = ""
        try:
            self._files.read()
        except (ConfigurationError, OSError) as error:
            unusable = str(error)
            if unusable != self._unusable:  # what can't be opened is tried again each time
                log.error("changed files can't be used, writers are judged by those before", error=unusable)  # noqa: TRY400
        self._unusable = unusable
        # If only one part can't be used, the other counts all the same.
        self._judge.use(self._authority())

    def _authority(self) -> Authority:
        from statehouse.security.record_authors import Authority  # noqa: PLC0415 - see above

        known = self._files.known
        return Authority(known.anchors or {}, known.revoked, known.rules)


def authors_of(brokers: Brokers | str, topic: str, on_unsigned: Callable[[bytes | None], None]) -> RecordAuthors | None:
    """Return who judges a control topic's records; None if nobody does: the process has no TLS with a CA."""
    security = Brokers.of(brokers).records
    try:
        return RecordAuthors(security, topic, on_unsigned) if security.judges else None
    except OSError as error:
        raise ConfigurationError(f"can't read a file that the writers of records are known by: {error}") from error


def _signer(security: RecordSecurity) -> RecordSigner:
    from statehouse.security.record_signatures import RUN_BYTES, RecordSigner  # noqa: PLC0415 - see above

    most = 1 << 20
    try:
        return RecordSigner(
            file_reads.read(Path(security.certificate), most),
            file_reads.read(Path(security.key), most),
            os.urandom(RUN_BYTES),
        )
    except OSError as error:
        raise ConfigurationError(f"records can't be signed: {error}") from error
