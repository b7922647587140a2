"""The versions of an application, and which of them serves under its name. Pure.

One record has both. Operators change it, and every router follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from statehouse.contract.formats import VERSIONS
from statehouse.contract.version_names import FIRST, is_version
from statehouse.control.v1 import versions_pb2
from statehouse.errors import ContractError, LookupFailure, Reason, StatehouseError, shown
from statehouse.errors.checked import checked_count, checked_list, checked_record

VERSIONS_KEY: Final = b"versions"
"""The key of the record, in the assignment topic of the first version. It is no part of an assignment."""
VERSIONS_MAX: Final = 8
"""Versions that are not retired: each router keeps the fleet of each."""

_RECORD_MAX: Final = 65_536


class VersionRefused(StatehouseError):
    """A change of versions that can't be made now; the message says what to do."""


def checked_version(name: str) -> str:
    """Return the name of a version.

    Raises:
        VersionRefused: it is none.

    """
    if not is_version(name):
        raise VersionRefused(
            f"{shown(name)} can't name a version: use 1 to 31 letters, digits or '_', the first a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True)
class Versions:
    """Which version serves, and which others there are. Times are epoch milliseconds.

    Attributes:
        serving: the version that routers ask.
        all: those that are not retired, in the order in which they came.
        before: the one that served before and is kept until `kept_until_ms`; empty: none is.
        number: grows with each change.
        switched: the number of the change that made it serve.

    """

    serving: str = FIRST
    all: tuple[str, ...] = (FIRST,)
    before: str = ""
    kept_until_ms: int = 0
    number: int = 0
    switched: int = 0

    def deployed(self, version: str) -> Versions:
        """Return them with a further version; it serves only once it is promoted.

        Raises:
            VersionRefused: the name is none or taken, or there are too many.

        """
        if checked_version(version) in self.all or version == FIRST:
            raise VersionRefused(f"version {version} is there already: give the new one another name")
        if len(self.all) >= VERSIONS_MAX:
            raise VersionRefused(f"there are {VERSIONS_MAX} versions, the most: retire one first")
        return replace(self, all=(*self.all, version), number=self.number + 1)

    def promoted(self, version: str, kept_until_ms: int) -> Versions:
        """Return them with another version serving; the one that does now is kept for a rollback.

        Raises:
            VersionRefused: there is no such version, or it serves already.

        """
        self._require(version)
        if version == self.serving:
            raise VersionRefused(f"version {version} serves already")
        number = self.number + 1
        return replace(
            self,
            serving=version,
            before=self.serving,
            kept_until_ms=kept_until_ms,
            number=number,
            switched=number,
        )

    def rolled_back(self, now_ms: int) -> Versions:
        """Return them with the version serving that did before. The other one is kept as long: it may come back.

        Raises:
            VersionRefused: none is kept, or not any longer.

        """
        if not self.before:
            raise VersionRefused("no version is kept that served before")
        if now_ms >= self.kept_until_ms:
            late_s = (now_ms - self.kept_until_ms) // 1000
            raise VersionRefused(
                f"version {self.before} was kept until {late_s} s ago; if it still runs, promote it instead"
            )
        return self.promoted(self.before, self.kept_until_ms)

    def retired(self, version: str, now_ms: int, *, is_forced: bool = False) -> Versions:
        """Return them without a version. `is_forced`: also one that a rollback would lead to, or that is gone already.

        Raises:
            VersionRefused: there is no such version, it serves, or it is still kept.

        """
        if is_forced and version not in self.all:
            return self
        self._require(version)
        if version == self.serving:
            raise VersionRefused(f"version {version} serves: promote another one first")
        is_kept = version == self.before and now_ms < self.kept_until_ms
        if is_kept and not is_forced:
            left_s = (self.kept_until_ms - now_ms) // 1000
            raise VersionRefused(f"version {version} is kept for a rollback for {left_s} s more: wait, or use --force")
        rest = tuple(each for each in self.all if each != version)
        before = "" if version == self.before else self.before
        return replace(
            self, all=rest, before=before, kept_until_ms=self.kept_until_ms if before else 0, number=self.number + 1
        )

    def _require(self, version: str) -> None:
        if version not in self.all:
            raise VersionRefused(f"there is no version {shown(version)}; there are: {', '.join(self.all)}")


def encode_versions(versions: Versions) -> bytes:
    """Return the record's value."""
    return versions_pb2.VersionsRecord(
        number=versions.number,
        serving=versions.serving,
        switched=versions.switched,
        before=versions.before,
        kept_until_ms=versions.kept_until_ms,
        versions=versions.all,
        format_version=VERSIONS.written,
    ).SerializeToString(deterministic=True)


def decode_versions(value: bytes) -> Versions:
    """Read the record's value.

    Raises:
        ContractError: it is no such record, or can't be true.

    """
    try:
        record = versions_pb2.VersionsRecord.FromString(checked_record(value, _RECORD_MAX))
    except DecodeError as error:
        raise ContractError(f"it is no record of versions: {error}") from error
    VERSIONS.check(record.format_version)
    found = tuple(checked_list("versions", record.versions, VERSIONS_MAX))
    for each in found:
        if not is_version(each):
            raise ContractError(f"{shown(each)} can't name a version")
    if len(set(found)) < len(found) or record.serving not in found:
        raise ContractError("the version that serves isn't among its versions, or one is there twice")
    if record.before and (record.before not in found or record.before == record.serving):
        raise ContractError("the version that served before isn't among its other versions")
    return Versions(
        record.serving,
        found,
        record.before,
        record.kept_until_ms,
        checked_count("number", record.number),
        checked_count("switched", record.switched),
    )


def not_started(version: str) -> LookupFailure:
    """Return the failure of a call that names a version which nobody has started yet."""
    return LookupFailure(
        Reason.UNKNOWN_VERSION,
        f"version {version} has no nodes yet, as far as this router knows: start its processor and nodes",
        {"version": version},
    )


def unknown_version(version: str, known: Sequence[str]) -> LookupFailure:
    """Return the failure of a call that names a version which isn't there."""
    return LookupFailure(
        Reason.UNKNOWN_VERSION,
        f"there is no version {shown(version)}; there are: {', '.join(known)}",
        {"version": version[:100]},
    )
