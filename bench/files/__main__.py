"""What a restore by a peer's files takes: `python -m bench.files`. Beside it one by the changelog, and a copy.

Each round has the three in turn, with cold caches; the figures are ratios of the same round. Lookups at the giving node
are compared with those just after, for as long, with cold caches and a caller that asks as much. Each node has one
processor for itself.

Nodes take settings from the environment (`STATEHOUSE_PEER_BYTES_PER_S=100000000 python -m bench.files`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bench.failure import BenchFailure
from bench.files.restores import Pair, copied, drop_caches, processor_of
from bench.machine import Watch, describe
from bench.reporting import carried_out, say
from statehouse.local.kafka import EmbeddedKafka

_BROKER_HEAP_MB: Final = 1024
_KEY_BYTES: Final = 9
_BARS: Final = {(1, 100): 3.0, (10, 100): 10.0}
"""By records of a key and bytes of a value; others are reported without a bar."""
_COPY_BAR: Final = 2.0
_P99_BAR: Final = 1.5
_WARM_S: Final = 2.0
_QUIET_LEAST_S: Final = 2.0
_HEAD: Final = (
    "| case | by records, s | by files, s | ratio | bar | copy and hash, s | ratio | bar | p99, ms | bar |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Case:
    """How many records of each key there are, and the bytes of a value."""

    records_a_key: int
    value: int

    def __str__(self) -> str:
        return f"{self.records_a_key}x{self.value}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Return the case of a text like "10x100"."""
        records_a_key, value = map(int, text.split("x"))
        return cls(records_a_key, value)


@dataclass(frozen=True, slots=True)
class Round:
    """A round's times in seconds, and lookups' 99th percentiles at the node that gives, in milliseconds."""

    by_records_s: float
    by_files_s: float
    copy_s: float
    quiet_p99_ms: float
    giving_p99_ms: float


class LogIsCheaper(BenchFailure):
    """The node took its log, although a peer could give its files."""


def main() -> int:
    """Measure, and print a table; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    watch, results = Watch(), []
    say(f"caches are {'dropped before each measurement' if drop_caches() else 'as they are: only root may drop them'}")
    for case in options.cases:
        with tempfile.TemporaryDirectory(prefix="bench-files-", dir=options.directory) as directory:
            results.append((case, _measured(Path(directory), case, options)))
    for line in (*_HEAD, *(_row(*each) for each in results)):
        say(line)
    say(f"the machine: {watch.so_far()}")
    if options.json is not None:
        all_rounds = [{**asdict(case), "rounds": [asdict(each) for each in rounds]} for case, rounds in results]
        content = {"machine": describe(), "bytes": options.bytes, "results": all_rounds}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measured(directory: Path, case: Case, options: argparse.Namespace) -> list[Round]:
    keys = options.bytes // (_KEY_BYTES + case.value)
    with EmbeddedKafka(directory / "broker", heap_mb=_BROKER_HEAP_MB) as broker:
        pair = Pair(broker.bootstrap, directory / "nodes", f"files-{case}", keys)
        # The caller is on the giver's processor: the other node's work shall not delay it.
        with pair.running(), processor_of(0):
            say(f"{keys:,} keys, {case.records_a_key} records of each, values of {case.value} bytes: written")
            pair.fill(case.records_a_key, case.value)
            pair.begin_anew(pair.first)
            say(f"the first restore, by records: {pair.restore(pair.first, pair.first).took_s:.1f} s")
            pair.node(pair.first).stop()  # what is in memory is in files then
            try:
                return [_round(pair, directory, number) for number in range(1, options.rounds + 1)]
            except LogIsCheaper as reason:
                if _bar(case) is not None:
                    raise
                say(str(reason))
                return []


def _round(pair: Pair, directory: Path, number: int) -> Round:
    pair.assign("nobody")
    pair.begin_anew(pair.second)
    by_records = pair.restore(pair.second, pair.second)
    if by_records.source != "log":
        raise BenchFailure(f"the restore was by {by_records.source}, where there is no peer")
    pair.node(pair.second).stop()

    copy_s = copied(pair.files(pair.first), directory / "copy")

    pair.assign(pair.first)
    pair.start(pair.first)
    while pair.restored(pair.first) is None:
        pair.node(pair.first).check()
        time.sleep(0.1)
    pair.begin_anew(pair.second)
    with pair.lookups(pair.first) as lookups:
        time.sleep(_WARM_S)
        by_files = pair.restore(pair.second, pair.first, pair.second)
        quiet_s = max(by_files.took_s, _QUIET_LEAST_S)
        quiet_from = pair.ask(pair.second, quiet_s)
    if lookups.failures:
        raise BenchFailure(f"{lookups.failures} lookups failed")
    for name in (pair.second, pair.first):
        pair.node(name).stop()
    if by_files.source != f"peer {pair.first}":
        raise LogIsCheaper(f"the restore was by {by_files.source}, where there is a peer: it takes longer by estimate")
    found = Round(
        by_records.took_s,
        by_files.took_s,
        copy_s,
        lookups.p99_ms(quiet_from, quiet_from + quiet_s),
        lookups.p99_ms(by_files.began, by_files.began + by_files.took_s),
    )
    say(f"round {number}: {found}")
    return found


def _bar(case: Case) -> float | None:
    return _BARS.get((case.records_a_key, case.value))


def _row(case: Case, rounds: list[Round]) -> str:
    if not rounds:
        return f"| {case} | by its log, which takes less by estimate {'| ' * (_HEAD[0].count('|') - 3)}|"
    faster = statistics.median(each.by_records_s / each.by_files_s for each in rounds)
    copies = statistics.median(each.by_files_s / each.copy_s for each in rounds)
    p99 = statistics.median(each.giving_p99_ms / each.quiet_p99_ms for each in rounds)
    times = [statistics.median(column) for column in zip(*(asdict(each).values() for each in rounds), strict=True)]
    at_least = _bar(case)
    bar, copy_bar, p99_bar = ("none",) * 3
    if at_least is not None:
        bar, copy_bar, p99_bar = f">= {at_least:g} x", f"<= {_COPY_BAR:g} x", f"<= {_P99_BAR:g} x"
    cells = (
        f"{case} | {times[0]:.1f} | {times[1]:.1f} | {faster:.1f} x | {bar}",
        f"{times[2]:.1f} | {copies:.2f} x | {copy_bar}",
        f"{times[3]:.1f}, {times[4]:.1f}: {p99:.2f} x | {p99_bar}",
    )
    return f"| {' | '.join(cells)} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=__doc__)
    parser.add_argument("--bytes", type=int, default=200_000_000, help="keys and values (default: %(default)s)")
    parser.add_argument(
        "--cases",
        type=Case.parse,
        nargs="+",
        default=[Case(1, 100), Case(10, 100), Case(1, 1_000)],
        metavar="RECORDSxBYTES",
        help="records of each key, and bytes of a value (default: 1x100 10x100 1x1000)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--directory", type=Path, help="where data and logs go (default: the system's temporary one)")
    parser.add_argument("--json", type=Path, help="file for every figure of every round")
    return parser


if __name__ == "__main__":
    sys.exit(main())
