"""What stands where a file should: only regular files are read, nothing is waited for, and no more than expected."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from processor.ownership.static import StaticTopology
from statehouse.cli.context_file import read_contexts
from statehouse.errors import ConfigurationError
from statehouse.kafka.security import client_options, read_credentials
from statehouse.local.application_file import FILE, ApplicationFile
from statehouse.rpc.credentials import ClientTls, CredentialFiles, ssl_context
from statehouse.rpc.server_credentials import server_credentials
from statehouse.runtime import file_reads
from statehouse.runtime.brokers import KafkaSecurity
from statehouse.security.server_tls import server_context
from statehouse.settings import RouterSettings, load
from tests.support.certificates import Authority

MOST = 1_000


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def _huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 30)


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


KINDS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "socket": _socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "links in a circle": _loop,
    "a link to nothing": lambda path: path.symlink_to("/no/such/file"),
    "a link to a FIFO": lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to(path.with_name("fifo"))),
    "1 GiB": _huge,
    "nothing": lambda _path: None,
}


@pytest.fixture(params=KINDS)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "odd"
    KINDS[request.param](path)
    return path


@pytest.fixture(autouse=True)
def _is_in_time() -> Iterator[None]:
    """A test that waits for a FIFO would wait for ever, and hold up the end of all tests."""
    late = threading.Event()

    def end() -> None:
        if not late.wait(10.0):
            os._exit(70)

    watcher = threading.Thread(target=end, daemon=True)
    watcher.start()
    yield
    late.set()


def test_what_is_no_regular_file_is_refused_at_once(odd: Path):
    for read in (file_reads.read, file_reads.check):
        with pytest.raises(OSError, match=r"odd|No such file|symbolic links"):
            read(odd, MOST)


def test_a_file_is_read_to_its_bound_also_by_links(tmp_path: Path):
    mounted = tmp_path / "..data"
    mounted.mkdir()
    (mounted / "rules").write_bytes(b"x" * MOST)
    (tmp_path / "linked").symlink_to("..data")
    (tmp_path / "rules").symlink_to("linked/rules")
    assert file_reads.read(tmp_path / "rules", MOST) == b"x" * MOST
    with pytest.raises(OSError, match="more than 999 bytes"):
        file_reads.read(tmp_path / "rules", MOST - 1)


def test_what_becomes_a_fifo_between_the_look_and_the_opening_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path, really = tmp_path / "rules", os.open
    path.write_bytes(b"")

    def opened(*given: object, **named: object) -> int:
        path.unlink()
        os.mkfifo(path)
        return really(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opened)
    with pytest.raises(OSError, match="a FIFO"):
        file_reads.read(path, MOST)


def _is_refused(use: Callable[[], object]) -> None:
    with pytest.raises((ConfigurationError, OSError)):
        use()


def test_every_file_of_the_settings_is_read_so(odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = Authority(tmp_path, "house").issue(("localhost",))
    certificate, key = mine.certificate_path, mine.key_path

    def server(**files: Path) -> RouterSettings:
        given = {"tls_certificate": certificate, "tls_key": key, **files}
        return RouterSettings(application_id="tests", **given)

    for files in ({"tls_certificate": odd}, {"tls_key": odd}, {"tls_ca": odd}):
        _is_refused(lambda files=files: server_context(server(**files)))  # type: ignore[misc]
        _is_refused(lambda files=files: server_credentials(server(**files)))  # type: ignore[misc]
    for tls in (ClientTls(odd), ClientTls(certificate, odd, key), ClientTls(certificate, certificate, odd)):
        _is_refused(lambda tls=tls: CredentialFiles(tls))  # type: ignore[misc]
        _is_refused(lambda tls=tls: ssl_context(tls))  # type: ignore[misc]
    _is_refused(lambda: CredentialFiles(ClientTls(certificate, token=odd)))
    _is_refused(lambda: read_credentials(str(odd)))
    _is_refused(lambda: client_options(KafkaSecurity(protocol="ssl", ca=str(odd))))
    _is_refused(lambda: load(RouterSettings, {}, odd))
    _is_refused(lambda: StaticTopology.load(odd))
    if odd.exists():
        monkeypatch.setattr("statehouse.cli.context_file.contexts_file", lambda: odd)
        _is_refused(read_contexts)


def test_the_file_of_an_application_is_read_so(odd: Path):
    if odd.exists():
        odd.rename(odd.with_name(FILE))
        _is_refused(lambda: ApplicationFile.of(odd.parent))


def test_a_context_takes_files_that_are_right(tmp_path: Path):
    house = Authority(tmp_path, "house")
    mine = house.issue(("localhost",))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    file_reads.load_pair(context, mine.certificate_path, mine.key_path)
    noted = tmp_path / "with-words.pem"
    noted.write_bytes("# Türktrust\n".encode() + house.path.read_bytes())
    file_reads.load_ca(context, noted)
    assert len(context.get_ca_certs()) == 1
