"""`statehouse certs`: certificates to try TLS with. Its imports happen when a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statehouse.cli.output import note

app = typer.Typer(no_args_is_help=True, help="Make certificates for development, and revoke them.")

FolderArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Where the certificates are.", show_default=False)]


@app.command()
def dev(
    folder: FolderArgument,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A further host's name or IP address that the certificates are good for. May be repeated.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3_650, help="How long they are valid.")] = 30,
    force: Annotated[bool, typer.Option("--force", help="Make all anew, the CA too.")] = False,
) -> None:
    """Make a CA, certificates for each part of a fleet and for its callers, and rules: for development only.

    Example: statehouse certs dev dev-certificates --host my-laptop
    """
    from statehouse.local.certificates import make_certificates  # noqa: PLC0415 - other commands need none of it

    for path in make_certificates(folder, tuple(host or ()), days, force=force):
        print(path)
    note(f"valid for {days} days; whoever can read {folder / 'ca.key'} can make more: not for production")


@app.command()
def revoke(
    folder: FolderArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose: reader, node, ...", show_default=False)],
) -> None:
    """Revoke a certificate, by DIR/crl.pem; processes with that file as tls_crl read it anew.

    Example: statehouse certs revoke dev-certificates reader
    """
    from statehouse.local import certificates  # noqa: PLC0415 - as above

    certificates.revoke(folder, name)
    note(f"{name} is revoked in {folder / certificates.CRL}")
