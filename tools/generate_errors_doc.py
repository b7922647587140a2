"""Write `docs/errors.md` from the reasons and the exit codes; `--check` fails when it is not what would be written."""

from __future__ import annotations

from statehouse.cli.exits import ExitCode, code_of
from statehouse.errors import REASONS, LookupFailure
from tools.generated_page import write_or_check

HEAD = """# Errors

<!-- Written by tools/generate_errors_doc.py from statehouse/errors/failures.py and statehouse/cli/exits.py;
run `make docs` after a change there. -->

A failed call carries two status details. `google.rpc.ErrorInfo` (domain `statehouse`, reason with the prefix
`ERROR_REASON_`) is for any client. `statehouse.v1.LookupError` has the newest route and, from a router, each
candidate and why it was not used. In `BatchGet` every entry has a `LookupError` of its own.

"Elsewhere" says whether another replica may succeed: a router then moves on, so a client sees the
reason only among the candidates of NO_REPLICA_AVAILABLE or DEADLINE_EXCEEDED.

| reason | gRPC status | meaning | what to do | elsewhere |
|---|---|---|---|---|
"""

EXITS = """
## Exit codes of the command line

A command of `statehouse` that fails says why on stderr, and ends with one of these codes. Scripts can rely on them.

| code | meaning | after these reasons |
|---|---|---|
"""

MEANINGS = {
    ExitCode.DONE: "Done. A processor, node or router that a signal tells to stop ends so, too.",
    ExitCode.ERROR: "Error.",
    ExitCode.USAGE: "Usage: an option, a setting, a key or a query is wrong.",
    ExitCode.NOT_FOUND: "Not found: the store does not hold the key. A replica vouches for that.",
    ExitCode.UNAVAILABLE: "Unavailable or too stale: the same command may succeed later, or with wider bounds.",
    ExitCode.INTERRUPTED: "Ended by SIGINT.",
    ExitCode.TERMINATED: "Ended by SIGTERM.",
}


def text() -> str:
    """Return the whole page."""
    rows = [
        f"| `{reason.name}` | {spec.status} | {spec.meaning} | {spec.remedy} | {'yes' if spec.elsewhere else 'no'} |\n"
        for reason, spec in REASONS.items()
    ]
    return HEAD + "".join(rows) + EXITS + "".join(_exit_row(code) for code in ExitCode)


def _exit_row(code: ExitCode) -> str:
    reasons = [f"`{reason.name}`" for reason in REASONS if code_of(LookupFailure(reason, "")) is code]
    told = "all others" if code is ExitCode.UNAVAILABLE else ", ".join(reasons) or "-"
    return f"| {code.value} | {MEANINGS[code]} | {told} |\n"


if __name__ == "__main__":
    write_or_check(__doc__, "docs/errors.md", text, "the reasons and exit codes")
