"""Reads files that others write: regular ones only, and no more of them than is expected.

To open a FIFO waits for somebody to write, and /dev/zero has no end: a thread that reads such a file is gone for good,
and whatever waits for it. A link is followed, as mounted secrets are links to files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    import ssl

PEM_BYTES_MAX: Final = 1 << 20
"""For files of certificates and keys."""
SECRET_BYTES_MAX: Final = 64 << 10
"""For a file with a token, or a user and password."""
TEXT_BYTES_MAX: Final = 4 << 20
"""For files of settings and other texts that people write."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, without ever waiting for it.

    Raises:
        OSError: it can't be opened, or is something else.

    """
    # Looked at before, because to open a device may do something; and after, because it may be another file by then.
    _refuse_other(path, path.stat().st_mode)
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        _refuse_other(path, os.fstat(file.fileno()).st_mode)
        yield file


def read(path: Path, most_bytes: int) -> bytes:
    """Return a regular file's content.

    Raises:
        OSError: it can't be read, is something else, or has more bytes.

    """
    with opened(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def check(path: Path, most_bytes: int) -> None:
    """Return if a file is one that may be given to a library, which opens it on its own.

    Raises:
        OSError: as `read`.

    """
    with opened(path) as file:
        _refuse_larger(path, file, most_bytes)


def load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Have a context show a certificate, whose key has no password.

    Raises:
        OSError: as `read`; or the files don't hold what they should (an `ssl.SSLError` is one).
        ValueError: the key has a password.

    """
    with _looked_at(certificate) as its_certificate, _looked_at(key) as its_key:
        context.load_cert_chain(its_certificate, its_key, password=b"")  # else it would be asked for at the terminal


def load_ca(context: ssl.SSLContext, ca: Path) -> None:
    """Have a context trust the CAs in a file.

    Raises:
        OSError: as `load_pair`.

    """
    with _looked_at(ca) as its_ca:
        context.load_verify_locations(its_ca)


@contextmanager
def _looked_at(path: Path) -> Iterator[str]:
    """Return a path for OpenSSL, which takes no content: by this one it opens the file that was looked at here."""
    with opened(path) as file:
        _refuse_larger(path, file, PEM_BYTES_MAX)
        yield f"/dev/fd/{file.fileno()}"


def _refuse_larger(path: Path, file: BinaryIO, most_bytes: int) -> None:
    if os.fstat(file.fileno()).st_size > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))


def _refuse_other(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, and no regular file", str(path))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
