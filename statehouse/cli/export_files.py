"""The folder of an export: a file for each partition of a store, and a manifest, which is written last.

Nothing half-done looks whole. A file has its name once it is on disk with all of its content, and the folder is whole
once it has `manifest.json`. Until then `unfinished.json` says which files are whole, with their checksums, so that an
export that was killed can be gone on with.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from statehouse.client.answers import InputEnd
from statehouse.errors import ConfigurationError, StatehouseError

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "unfinished.json"
FORMAT_VERSION: Final = 1
_PARTIAL: Final = ".partial"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ExportFailed(StatehouseError):
    """The folder can't be written or read."""


@dataclass(frozen=True, slots=True)
class ExportedPart:
    """A file of a partition.

    Attributes:
        undecodable: keys and values that are null, because they don't decode.
        position: where the moment ends in the partition's changelog; None if the partition is empty.

    """

    partition: int
    file: str
    entries: int
    undecodable: int
    bytes: int
    sha256: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """What a folder has of a store; `moment` is a token, of batch `batch_id` of query `query_id`.

    `source_ends`: what it includes of the inputs; None if no router could say.
    """

    store: str
    kind: str
    key_serde: str
    value_serde: str
    partitions: int
    format: str
    raw: bool
    moment: str
    query_id: str
    batch_id: int
    source_ends: tuple[InputEnd, ...] | None = None
    parts: tuple[ExportedPart, ...] = ()
    format_version: int = FORMAT_VERSION

    @property
    def entries(self) -> int:
        """How many entries all files have."""
        return sum(part.entries for part in self.parts)

    @property
    def undecodable(self) -> int:
        """How many keys and values don't decode."""
        return sum(part.undecodable for part in self.parts)

    def is_same(self, other: Exported) -> bool:
        """Whether the other one exports the same in the same form, whatever the moment."""
        same = {"moment": "", "query_id": "", "batch_id": 0, "source_ends": None, "parts": ()}
        return dataclasses.replace(self, **same) == dataclasses.replace(other, **same)  # type: ignore[arg-type] # by name

    def with_part(self, part: ExportedPart) -> Exported:
        """Return the same with one more file."""
        return dataclasses.replace(self, parts=(*self.parts, part))

    def document(self) -> dict[str, Any]:
        """Return what the manifest says."""
        return {**dataclasses.asdict(self), "entries": self.entries, "undecodable": self.undecodable}

    @classmethod
    def of(cls, document: Any) -> Self:  # noqa: ANN401 - of JSON
        """Read a manifest.

        Raises:
            ValueError: it is none, or of a later version.

        """
        if not isinstance(document, dict) or document.get("format_version") != FORMAT_VERSION:
            raise ValueError("it is of another version")
        names = {each.name for each in dataclasses.fields(cls)}
        try:
            parts = tuple(ExportedPart(**each) for each in document["parts"])
            ends = document.get("source_ends")
            made = {"parts": parts, "source_ends": None if ends is None else tuple(InputEnd(**each) for each in ends)}
            return cls(**{name: value for name, value in document.items() if name in names} | made)
        except (KeyError, TypeError) as error:
            raise ValueError(str(error)) from error


class _Hashed:
    """A file that is being written, and the checksum of what was.

    Once `is_over`, nothing is written any more: Arrow's writer ends its file when it is collected, after failures, too.
    """

    def __init__(self, file: Any) -> None:  # noqa: ANN401 - a file
        self._file, self.sum, self.bytes = file, hashlib.sha256(), 0
        self.is_over = self.closed = False

    def write(self, data: Any) -> int:  # noqa: ANN401 - bytes, or a buffer of Arrow's
        view = memoryview(data).cast("B")
        if self.is_over:
            return len(view)
        self._file.write(view)
        self.sum.update(view)
        self.bytes += len(view)
        return len(view)

    def tell(self) -> int:
        """Return how much was written."""
        return self.bytes

    def flush(self) -> None:
        self._file.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Leave it open: the owner closes it."""


@dataclass(slots=True)
class PartFile:
    """The file of a partition that is being written: what goes into it, and what is known of that."""

    sink: _Hashed
    entries: int = 0
    undecodable: int = 0
    position: int | None = None


@dataclass(slots=True)
class ExportFolder:
    """A folder that one process at a time exports into."""

    path: Path
    _descriptor: int = field(init=False)

    def __post_init__(self) -> None:
        with self._naming("make"):
            self.path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise ConfigurationError(f"another export is being written into {self.path}") from error

    def close(self) -> None:
        """Let another process have it."""
        os.close(self._descriptor)

    @property
    def is_begun(self) -> bool:
        """Whether it has an export that isn't whole."""
        return (self.path / UNFINISHED).exists()

    def found(self, *, resume: bool) -> Exported | None:
        """Return the export that was begun here; None if the folder is empty.

        Raises:
            ConfigurationError: it has other files, or an export that isn't to be gone on with.
            ExportFailed: it can't be read.

        """
        with self._naming("read"):
            # One that was killed at its very beginning has left this.
            names = {each.name for each in self.path.iterdir()} - {UNFINISHED + _PARTIAL}
        if not names:
            return None
        if MANIFEST in names:
            raise ConfigurationError(f"{self.path} has a whole export already: take another folder")
        if UNFINISHED not in names:
            raise ConfigurationError(f"{self.path} is not empty: take another folder")
        if not resume:
            raise ConfigurationError(
                f"{self.path} has an export that was not finished: go on with it by --resume, or take another folder"
            )
        try:
            with self._naming("read"):
                return Exported.of(json.loads((self.path / UNFINISHED).read_bytes()))
        except ValueError as error:
            raise ConfigurationError(f"{self.path / UNFINISHED} can't be gone on with: {error}") from error

    def is_whole(self, part: ExportedPart) -> bool:
        """Whether a file has what was written into it."""
        digest = hashlib.sha256()
        try:
            with (self.path / part.file).open("rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
        except OSError:
            return False
        return digest.hexdigest() == part.sha256

    def note(self, exported: Exported) -> None:
        """Note which files are whole."""
        self._put(UNFINISHED, exported)

    def finish(self, exported: Exported) -> None:
        """Write the manifest: from now on the export is whole."""
        self._put(MANIFEST, exported)
        with self._naming("write"):
            (self.path / UNFINISHED).unlink()
            os.fsync(self._descriptor)

    def write(self, partition: int, name: str, fill: Callable[[PartFile], None]) -> ExportedPart:
        """Write the file of a partition, which `fill` fills; return what is in it.

        Raises:
            ExportFailed: it can't be written.

        """
        partial = self.path / (name + _PARTIAL)
        try:
            with self._naming("write"):
                with partial.open("wb") as file:
                    filled = PartFile(_Hashed(file))
                    try:
                        fill(filled)
                    finally:
                        filled.sink.is_over = True
                    file.flush()
                    os.fsync(file.fileno())
                partial.rename(self.path / name)
                os.fsync(self._descriptor)
        finally:
            partial.unlink(missing_ok=True)
        return ExportedPart(
            partition,
            name,
            filled.entries,
            filled.undecodable,
            filled.sink.bytes,
            filled.sink.sum.hexdigest(),
            filled.position,
        )

    def _put(self, name: str, exported: Exported) -> None:
        """Write a file so that it is there whole or not at all, also after a power cut."""
        partial = self.path / (name + _PARTIAL)
        with self._naming("write"):
            with partial.open("w", encoding="utf-8") as file:
                json.dump(exported.document(), file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self.path / name)
            os.fsync(self._descriptor)

    @contextmanager
    def _naming(self, what: str) -> Iterator[None]:
        """Say what failed, and what to do."""
        try:
            yield
        except OSError as error:
            if error.errno in _FULL:
                raise ExportFailed(
                    f"{self.path} can't be written: {error.strerror}. Make room, and go on by --resume"
                ) from error
            raise ExportFailed(f"can't {what} {error.filename or self.path}: {error.strerror or error}") from error
