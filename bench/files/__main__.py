"""What a restore by a peer's files takes: `python -m bench.files`. Beside it one by the changelog, and a copy.

Each round has the three in turn, with cold caches; the figures are ratios of the same round.
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
from bench.files.restores import Pair, copied, drop_caches
from bench.machine import Watch, describe
from bench.reporting import carried_out, say
from statehouse.local.kafka import EmbeddedKafka

_BROKER_HEAP_MB: Final = 1024
_KEY_BYTES: Final = 9
_BARS: Final = {1: 3.0, 10: 10.0}
_COPY_BAR: Final = 2.0
_P99_BAR: Final = 1.5
_QUIET_S: Final = 10.0
_HEAD: Final = (
    "| records a key | by records, s | by files, s | ratio | bar | copy and hash, s | ratio | bar | p99, ms | bar |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class Round:
    """A round's times in seconds, and lookups' 99th percentiles at the node that gives, in milliseconds."""

    by_records_s: float
    by_files_s: float
    copy_s: float
    quiet_p99_ms: float
    giving_p99_ms: float


def main() -> int:
    """Measure, and print a table; the exit code is 1 if it failed, 130 if it was interrupted."""
    options = _parser().parse_args()
    return carried_out(lambda: _carry_out(options))


def _carry_out(options: argparse.Namespace) -> None:
    watch, results = Watch(), []
    say(f"caches are {'dropped before each measurement' if drop_caches() else 'as they are: only root may drop them'}")
    keys = options.bytes // (_KEY_BYTES + options.value)
    for records_a_key in options.records_a_key:
        with tempfile.TemporaryDirectory(prefix="bench-files-", dir=options.directory) as directory:
            found = _measured(Path(directory), keys, records_a_key, options)
        results.append((records_a_key, found))
    say(
        "| records a key | by records, s | by files, s | ratio | bar | copy and hash, s | ratio | bar | p99, ms | bar |"
    )
    say("|---|---|---|---|---|---|---|---|---|---|")
    for records_a_key, rounds in results:
        say(_row(records_a_key, rounds))
    say(f"the machine: {watch.so_far()}")
    if options.json is not None:
        all_rounds = [
            {"records_a_key": number, "rounds": [asdict(each) for each in rounds]} for number, rounds in results
        ]
        content = {"machine": describe(), "bytes": options.bytes, "value": options.value, "results": all_rounds}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _measured(directory: Path, keys: int, records_a_key: int, options: argparse.Namespace) -> list[Round]:
    with EmbeddedKafka(directory / "broker", heap_mb=_BROKER_HEAP_MB) as broker:
        pair = Pair(broker.bootstrap, directory / "nodes", f"files-{records_a_key}", keys)
        with pair.running():
            say(f"{keys:,} keys, {records_a_key} records of each, values of {options.value} bytes: written")
            pair.fill(records_a_key, options.value)
            pair.begin_anew(pair.first)
            say(f"the first restore, by records: {pair.restore(pair.first, pair.first).took_s:.1f} s")
            pair.node(pair.first).stop()  # what is in memory is in files then
            return [_round(pair, directory, number) for number in range(1, options.rounds + 1)]


def _round(pair: Pair, directory: Path, number: int) -> Round:
    pair.assign("nobody")
    pair.begin_anew(pair.second)
    by_records = pair.restore(pair.second, pair.second)
    if by_records.source != "log":
        raise BenchFailure(f"the restore was by {by_records.source}, where there is no peer")
    pair.node(pair.second).stop()

    copy_s = copied(pair.files(pair.first), directory / "copy")

    pair.assign(pair.first)
    pair.node(pair.first).start()
    while pair.restored(pair.first) is None:
        pair.node(pair.first).check()
        time.sleep(0.1)
    pair.begin_anew(pair.second)
    with pair.lookups(pair.first) as lookups:
        time.sleep(_QUIET_S / 5)  # the first ones find cold caches
        quiet_from = time.monotonic()
        time.sleep(_QUIET_S)
        giving_from = time.monotonic()
        by_files = pair.restore(pair.second, pair.first, pair.second)
        giving_to = time.monotonic()
    if by_files.source != f"peer {pair.first}":
        raise BenchFailure(f"the restore was by {by_files.source}, where there is a peer")
    if lookups.failures:
        raise BenchFailure(f"{lookups.failures} lookups failed")
    for name in (pair.second, pair.first):
        pair.node(name).stop()
    found = Round(
        by_records.took_s,
        by_files.took_s,
        copy_s,
        lookups.p99_ms(quiet_from, giving_from),
        lookups.p99_ms(giving_from, giving_to),
    )
    say(f"round {number}: {found}")
    return found


def _row(records_a_key: int, rounds: list[Round]) -> str:
    faster = statistics.median(each.by_records_s / each.by_files_s for each in rounds)
    copies = statistics.median(each.by_files_s / each.copy_s for each in rounds)
    p99 = statistics.median(each.giving_p99_ms / each.quiet_p99_ms for each in rounds)
    times = [statistics.median(column) for column in zip(*(asdict(each).values() for each in rounds), strict=True)]
    bar = f">= {_BARS[records_a_key]:g} x" if records_a_key in _BARS else "none"
    cells = (
        f"{records_a_key} | {times[0]:.1f} | {times[1]:.1f} | {faster:.1f} x | {bar}",
        f"{times[2]:.1f} | {copies:.2f} x | <= {_COPY_BAR:g} x",
        f"{times[3]:.1f}, {times[4]:.1f}: {p99:.2f} x | <= {_P99_BAR:g} x",
    )
    return f"| {' | '.join(cells)} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.files", description=__doc__)
    parser.add_argument("--bytes", type=int, default=200_000_000, help="keys and values (default: %(default)s)")
    parser.add_argument("--value", type=int, default=100, help="bytes of a value (default: %(default)s)")
    parser.add_argument("--records-a-key", type=int, nargs="+", default=[1, 10], help="default: 1 10")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--directory", type=Path, help="where data and logs go (default: the system's temporary one)")
    parser.add_argument("--json", type=Path, help="file for every figure of every round")
    return parser


if __name__ == "__main__":
    sys.exit(main())
