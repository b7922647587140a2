"""Write `docs/errors.md` from the one table of reasons; `--check` fails when the page is out of date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from google.rpc import code_pb2

from statehouse.errors import REASONS

TARGET = Path(__file__).resolve().parent.parent / "docs" / "errors.md"

HEAD = """# Errors

<!-- Written by tools/generate_errors_doc.py from statehouse/errors.py; run `make docs` after a change there. -->

A failed call carries two status details: `google.rpc.ErrorInfo` (domain `statehouse`, reason with the prefix
`ERROR_REASON_`) for any client, and `statehouse.v1.LookupError` with the newest route and, from a router, each
candidate and why it was not used. In `BatchGet` every entry has a `LookupError` of its own.

"Elsewhere" says whether another replica may succeed: a router then moves on by itself, so that a client sees the
reason only among the candidates of NO_REPLICA_AVAILABLE or DEADLINE_EXCEEDED.

| reason | gRPC status | meaning | what to do | elsewhere |
|---|---|---|---|---|
"""


def text() -> str:
    """Return the whole page."""
    rows = [
        f"| `{reason.name}` | {code_pb2.Code.Name(spec.code)} | {spec.meaning} | {spec.remedy} "
        f"| {'yes' if spec.elsewhere else 'no'} |\n"
        for reason, spec in REASONS.items()
    ]
    return HEAD + "".join(rows)


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    if not parser.parse_args().check:
        TARGET.write_text(text(), encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text():
        sys.exit("docs/errors.md is not what the table of reasons says: run `make docs`")


if __name__ == "__main__":
    main()
