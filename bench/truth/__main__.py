"""Counts wrong answers under faults: `python -m bench.truth`, or one cell: `--system redis --fault kill`."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from bench.machine import Watch, describe
from bench.records import create_topic
from bench.reporting import carried_out, say
from bench.results import commit
from bench.shape import Side
from bench.sides.servers import ROOT
from bench.truth import SOURCE
from bench.truth.play import Play, played
from bench.truth.schedule import Fault
from bench.truth.systems.ours import SHAPE, Ours
from bench.truth.systems.postgres import Postgres
from bench.truth.systems.redis import Redis
from bench.truth.systems.streams import Streams
from bench.truth.systems.system import System
from bench.truth.table import markdown
from bench.truth.trading import Trading
from statehouse.local.ports import free_port
from tests.support.fault_proxy import FaultProxy
from tests.support.kafka_doors import Door, KafkaWithDoors

OURS, STREAMS, REDIS, PACKAGED, POSTGRES = "statehouse", "kafka-streams", "redis", "redis-packaged", "postgres"
SYSTEMS: Final = (OURS, STREAMS, REDIS, PACKAGED, POSTGRES)
_OF_WRITERS: Final = {Fault.WRITER, Fault.DRIVER}
_DOOR: Final = "truth"


def main() -> int:
    """Play, report progress, write the results; the exit code is 1 if it failed, 130 if it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m bench.truth", description=__doc__)
    parser.add_argument("--system", nargs="+", choices=SYSTEMS, default=SYSTEMS, help="only these (default: all)")
    parser.add_argument("--fault", nargs="+", type=Fault, choices=list(Fault), default=list(Fault), help="only these")
    parser.add_argument("--seed", type=int, default=1, help="of transfers and faults (default: 1)")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="where results are written")
    options = parser.parse_args()
    return carried_out(lambda: _carry_out(options), "results are of what was played to its end")


def _carry_out(options: argparse.Namespace) -> None:
    directory = Path(tempfile.mkdtemp(prefix="truth-"))
    directory.chmod(0o711)  # PostgreSQL runs as another user, and must get through
    say(f"logs and data go to {directory}, and stay there if something fails")
    began_at, watch = datetime.now(UTC), Watch()
    records: list[dict[str, Any]] = []
    try:
        for name in options.system:
            for of_part in _played(name, directory / name, options.fault, options.seed):
                records += of_part
    finally:
        if records:
            _write(options, began_at, watch, records)
    shutil.rmtree(directory)


def _write(options: argparse.Namespace, began_at: datetime, watch: Watch, records: list[dict[str, Any]]) -> None:
    content = {
        "command": f"python -m bench.truth {shlex.join(sys.argv[1:])}".strip(),
        "ended_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe(),
        "disturbance": watch.so_far(),
        "seed": options.seed,
        "records": records,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    of = "" if len(options.system) == len(SYSTEMS) else f"-{'-'.join(options.system)}"
    stem = f"{began_at:%Y-%m-%d-%H%M}-truth{of}"
    data, page = options.results / f"{stem}.json", options.results / f"{stem}.md"
    data.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    page.write_text(markdown(content), encoding="utf-8")
    say(f"results: {data}, {page}")


def _played(name: str, directory: Path, faults: Sequence[Fault], seed: int) -> Iterator[list[dict[str, Any]]]:
    """Play faults to one system, with a broker of its own; yield the records of each."""
    directory.mkdir()
    say(f"{name}: starting")
    chosen = [each for each in faults if name != STREAMS or each not in _OF_WRITERS]
    door = Door(advertised_port=free_port())
    with KafkaWithDoors(directory / "broker", doors={_DOOR: door}) as broker:
        create_topic(broker.bootstrap, SOURCE, SHAPE.partitions, {})
        trading = Trading(broker.bootstrap, SHAPE.partitions, seed)
        with _running(name, broker.bootstrap, door, directory) as system:
            play = Play(system, trading, seed)
            play.open()
            say(f"{name}: all accounts are open")
            yield from played(name, play, chosen)


@contextmanager
def _running(name: str, bootstrap: str, door: Door, directory: Path) -> Iterator[System]:
    """Give a system with its link; end it, whatever happens."""
    with ExitStack() as stack:
        system: System
        if name in {OURS, STREAMS}:
            link = stack.enter_context(FaultProxy(door.port, port=door.advertised_port))
            system = Ours(bootstrap, link, directory) if name == OURS else Streams(link, directory)
        else:
            port = free_port()
            link = stack.enter_context(FaultProxy(port))
            if name == POSTGRES:
                system = Postgres(bootstrap, link, port, directory)
            else:
                side = Side.REDIS if name == REDIS else Side.REDIS_SNAPSHOTS
                system = Redis(side, bootstrap, link, port, directory)
        stack.callback(system.stop)
        yield system


if __name__ == "__main__":
    sys.exit(main())
