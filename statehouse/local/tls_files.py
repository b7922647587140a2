"""Where a local cluster is, and with TLS its certificates. Quick to import: each command of the command line does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from statehouse.rpc.credentials import ClientTls

DEFAULT_RUN_DIR: Final = Path(".statehouse")
"""Where the local cluster of a directory keeps everything, unless told otherwise."""
TLS_FOLDER: Final = "tls"
"""In the run directory."""


def tls_of(run_dir: Path, name: str) -> ClientTls:
    """Return how an identity of a local cluster calls its router and nodes."""
    folder = run_dir / TLS_FOLDER
    return ClientTls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")
