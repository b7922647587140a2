"""Certificates for development: real handshakes, and what is written where."""

from __future__ import annotations

import socket
import ssl
import stat
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from statehouse.cli.exits import ExitCode
from statehouse.cli.main import app
from statehouse.errors import ConfigurationError
from statehouse.local import certificates

NAMES = tuple(certificates.ROLES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "certificates"
    certificates.make_certificates(folder, ["box.example", "10.1.2.3"])
    return folder


def context(folder: Path, name: str, purpose: ssl.Purpose, *, checks_crl: bool = False) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cafile=str(folder / "ca.pem"))
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    if checks_crl:
        made.load_verify_locations(folder / "crl.pem")
        made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return made


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> tuple[tuple[str, str], ...]:
    """Return the names of the certificate that the client has shown.

    Raises:
        ssl.SSLError: one of them refuses the other.

    """
    ours, theirs = socket.socketpair()
    with ours, theirs, ThreadPoolExecutor(1) as pool:
        ours.settimeout(10.0)
        theirs.settimeout(10.0)

        def serve() -> tuple[tuple[str, str], ...]:
            try:
                with server.wrap_socket(ours, server_side=True) as served:
                    served.sendall(b"x")
                    shown = served.getpeercert()
                    assert shown is not None
                    return shown["subjectAltName"]  # type: ignore[return-value] # typeshed says less than the docs
            finally:
                ours.close()

        serving = pool.submit(serve)
        try:
            with client.wrap_socket(theirs, server_hostname=name) as called:
                called.recv(1)
        finally:
            theirs.close()
            names = serving.result()
        return names


@pytest.mark.parametrize("name", NAMES)
def test_each_calls_and_those_of_servers_serve(folder: Path, name: str) -> None:
    client = context(folder, name, ssl.Purpose.SERVER_AUTH, checks_crl=True)
    for host in ("localhost", "127.0.0.1", "::1", "box.example", "10.1.2.3"):
        for serving in ("router", "node", "processor"):
            server = context(folder, serving, ssl.Purpose.CLIENT_AUTH, checks_crl=True)
            assert ("URI", f"statehouse://dev/{name}") in shake_hands(server, client, host)
    if name not in {"router", "node", "processor"}:
        with pytest.raises(ssl.SSLError):
            shake_hands(context(folder, name, ssl.Purpose.CLIENT_AUTH), client, "localhost")


def test_other_hosts_and_other_authorities_are_refused(folder: Path, tmp_path: Path) -> None:
    server = context(folder, "router", ssl.Purpose.CLIENT_AUTH)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, context(folder, "reader", ssl.Purpose.SERVER_AUTH), "elsewhere.example")
    certificates.make_certificates(tmp_path)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, context(tmp_path, "reader", ssl.Purpose.SERVER_AUTH), "localhost")


def test_keys_are_for_their_owner_and_nothing_is_left_over(folder: Path) -> None:
    files = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    keys = {f"{name}.key" for name in (*NAMES, "ca")}
    assert set(files) == keys | {f"{name}.pem" for name in (*NAMES, "ca", "crl")} | {"rules.toml"}
    assert {name for name, mode in files.items() if mode == 0o600} == keys


def test_rules_name_each_with_its_roles(folder: Path) -> None:
    identities = {each["name"]: each for each in tomllib.loads((folder / "rules.toml").read_text())["identity"]}
    assert {name: each["roles"] for name, each in identities.items()} == {
        "router": ["router"],
        "node": ["node"],
        "processor": ["node", "processor"],
        "operator": ["operator", "reader"],
        "reader": ["reader"],
        "health": ["health"],
    }
    assert {name for name, each in identities.items() if each.get("stores") == ["*"]} == {"operator", "reader"}
    assert {name for name, each in identities.items() if each.get("also") == ["fleet"]} == {"operator", "reader"}
    for name, each in identities.items():
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert each["certificates"] == names.get_values_for_type(x509.UniformResourceIdentifier)


def test_what_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    certificates.make_certificates(tmp_path, days=5)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="--force"):
        certificates.make_certificates(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    certificates.make_certificates(tmp_path, force=True)
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in after if after[name] == before[name]} == {"rules.toml"}
    # One that was signed by the CA before is no longer trusted.
    (tmp_path / "reader.pem").write_bytes(before["reader.pem"])
    (tmp_path / "reader.key").write_bytes(before["reader.key"])
    server = context(tmp_path, "router", ssl.Purpose.CLIENT_AUTH)
    with pytest.raises(ssl.SSLError):
        shake_hands(server, context(tmp_path, "reader", ssl.Purpose.SERVER_AUTH), "localhost")


def test_revoked_ones_are_refused_by_who_checks(tmp_path: Path) -> None:
    certificates.make_certificates(tmp_path)
    for name in ("reader", "health", "reader"):
        certificates.revoke(tmp_path, name)
    server = context(tmp_path, "router", ssl.Purpose.CLIENT_AUTH, checks_crl=True)
    for name in ("reader", "health"):
        with pytest.raises(ssl.SSLError):
            shake_hands(server, context(tmp_path, name, ssl.Purpose.SERVER_AUTH), "localhost")
    assert shake_hands(server, context(tmp_path, "operator", ssl.Purpose.SERVER_AUTH), "localhost")
    assert len(x509.load_pem_x509_crl((tmp_path / "crl.pem").read_bytes())) == 2


def test_they_are_current_until_their_last_day(tmp_path: Path) -> None:
    assert not certificates.are_current(tmp_path)
    certificates.make_certificates(tmp_path, days=1)
    assert not certificates.are_current(tmp_path)
    certificates.make_certificates(tmp_path, days=2, force=True)
    assert certificates.are_current(tmp_path)


@pytest.mark.parametrize("host", ["", "a b", "a..b", "https://x", "x" * 64, "ä.example"])
def test_hosts_that_are_no_names_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match="neither a host's name nor an IP address"):
        certificates.make_certificates(tmp_path, [host])
    assert list(tmp_path.iterdir()) == []


def test_the_command_makes_and_revokes(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    made = CliRunner().invoke(app, ["certs", "dev", str(folder), "--host", "box.example", "--days", "3"])
    assert made.exit_code == ExitCode.DONE
    assert set(made.stdout.split()) == {str(path) for path in folder.iterdir()}
    assert "not for production" in made.stderr
    assert CliRunner().invoke(app, ["certs", "revoke", str(folder), "node"]).exit_code == ExitCode.DONE
    assert len(x509.load_pem_x509_crl((folder / "crl.pem").read_bytes())) == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dev", "{folder}"], "--force"),
        (["dev", "{folder}", "--force", "--host", "no name"], "neither a host's name"),
        (["dev", "{folder}/ca.pem/below"], "can't write"),
        (["revoke", "{folder}", "nobody"], "there are: router, node"),
        (["revoke", "{folder}/elsewhere", "node"], "statehouse certs dev"),
    ],
)
def test_commands_say_what_to_do(folder: Path, arguments: list[str], told: str) -> None:
    failed = CliRunner().invoke(app, ["certs", *(each.format(folder=folder) for each in arguments)])
    assert failed.exit_code == ExitCode.USAGE
    assert told in failed.stderr


def test_a_damaged_folder_is_said_to_be_one(tmp_path: Path) -> None:
    certificates.make_certificates(tmp_path)
    (tmp_path / "crl.pem").write_text("damaged")
    with pytest.raises(ConfigurationError, match="damaged"):
        certificates.revoke(tmp_path, "node")
