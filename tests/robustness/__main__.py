"""Plays every scenario at full size: `python -m tests.robustness --report docs/robustness.md`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.robustness.figures import figures
from tests.robustness.report import machine, write_report
from tests.robustness.scenario import Outcome, played
from tests.robustness.soak import SOAK
from tests.robustness.suite import SCENARIOS
from tests.support.proxy import PROXY

_BY_NAME: Final = {**SCENARIOS, SOAK.name: SOAK}
# For all scenarios together; each has a limit of its own in addition.
_LIMIT_S: Final = 20 * 60


def main() -> int:
    """Play, say how it goes, write the report; the exit code is 1 if anything didn't hold."""
    options = _parser().parse_args()
    # As in tests: nodes and routers are served as those that users start once the tools are built.
    os.environ.setdefault("STATEHOUSE_PROXY", str(PROXY))
    directory: Path = options.directory or Path(tempfile.mkdtemp(prefix="robustness-"))
    if directory.exists() and any(directory.iterdir()):
        say(f"error: {directory} is not empty")
        return 2
    found_machine = machine()
    say(f"{found_machine}; histories and logs go to {directory}")
    outcomes: list[Outcome] = []
    names = options.scenarios or SCENARIOS
    ends_at = time.monotonic() + max(_LIMIT_S, *(_BY_NAME[name].limit_s for name in names))
    for name in names:
        began_at = time.monotonic()
        say(f"{name}: {_BY_NAME[name].story}")
        left_s = max(1, int(ends_at - began_at))
        outcome = played(
            _BY_NAME[name], directory / name, full=not options.small, limit_s=left_s, secured=options.secured
        )
        outcomes.append(outcome)
        numbers = figures(outcome.history)
        say(
            f"{name}: {'VIOLATED' if outcome.violations else 'holds'} after {time.monotonic() - began_at:.0f} s: "
            f"{numbers.lookups} lookups, {numbers.failed} failed, excused {numbers.excused}, "
            f"p99 {numbers.p99_ms:.1f} ms, "
            f"max staleness {numbers.max_staleness_ms} ms, longest gap {numbers.longest_gap_s:.2f} s, "
            f"processors busy {outcome.processors.busy_percent:.0f} %, stolen {outcome.processors.stolen_percent:.0f} %"
        )
        for violation in outcome.violations[:20]:
            say(f"  {violation}")
    if options.report is not None:
        write_report(options.report, outcomes, found_machine, secured=options.secured)
    return 1 if any(outcome.violations for outcome in outcomes) else 0


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument(
        "scenarios", nargs="*", choices=[[], *_BY_NAME], metavar="SCENARIO", help="default: all but soak"
    )
    parser.add_argument(
        "--report", type=Path, metavar="PAGE", help="the Markdown page whose last run, plain or secured, is replaced"
    )
    parser.add_argument("--directory", type=Path, help="where histories and logs go; default: a temporary one")
    parser.add_argument("--small", action="store_true", help="as in normal tests, without limits on times")
    parser.add_argument("--secured", action="store_true", help="nodes and routers with TLS, mutual, rules and a CRL")
    return parser


if __name__ == "__main__":
    sys.exit(main())
