"""`statehouse verify`: whether the replicas of a store are equal, and have what the changelog says."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from statehouse.cli import output
from statehouse.cli.exits import ExitCode
from statehouse.cli.options import StoreArgument
from statehouse.cli.output import Column
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.cli.sum_calls import Copy, SumCalls, SumOrder
from statehouse.cli.verification import CheckedPartition, Verification, Verifier
from statehouse.client import Store
from statehouse.contract.store_sums import BUCKETS, BUCKETS_MAX, LOG, Difference
from statehouse.contract.topology import SESSION, WINDOW
from statehouse.errors import LookupFailure
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.serdes import SERDES, MissingSerde

_RATE_MB: Final = 16.0
_MB: Final = 1_000_000
_LINES_EVERY_S: Final = 10.0
_LINES_ON_A_TERMINAL_EVERY_S: Final = 1.0
_SHOWN_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class _CopyRow:
    """A copy of a partition, as it is printed."""

    partition: int
    copy: str
    entries: int | None
    bytes: int | None
    batch: int | None
    result: str


@dataclass(frozen=True, slots=True)
class _DifferenceRow:
    """An entry that differs, as it is printed. `key` is text as the store's serde has it, or hex.

    `start_ms`, `end_ms`: of a window and of a session; a window has no end of its own.
    """

    partition: int
    replica: str
    key: str
    key_hex: str
    start_ms: int | None
    end_ms: int | None
    wrong: str
    timestamp_ms: int | None
    right_timestamp_ms: int | None


_COPIES: Final[Sequence[Column[_CopyRow]]] = (
    Column("PARTITION", lambda row: row.partition),
    Column("COPY", lambda row: row.copy),
    Column("ENTRIES", lambda row: "-" if row.entries is None else f"{row.entries:,}"),
    Column("BYTES", lambda row: "-" if row.bytes is None else f"{row.bytes:,}"),
    Column("BATCH", lambda row: "-" if row.batch is None else row.batch),
    Column("RESULT", lambda row: row.result),
)
_KEYS: Final[Sequence[Column[_DifferenceRow]]] = (
    Column("PARTITION", lambda row: row.partition),
    Column("REPLICA", lambda row: row.replica),
    Column("KEY", lambda row: row.key),
)
_START: Final = Column[_DifferenceRow]("START", lambda row: _time(row.start_ms))
_END: Final = Column[_DifferenceRow]("END", lambda row: _time(row.end_ms))
_SPANS: Final[Mapping[str, Sequence[Column[_DifferenceRow]]]] = {WINDOW: (_START,), SESSION: (_START, _END)}
_WRONG: Final[Sequence[Column[_DifferenceRow]]] = (
    Column("WRONG", lambda row: row.wrong),
    Column("KEY BYTES", lambda row: row.key_hex, is_wide=True),
    Column("TIME", lambda row: "-" if row.timestamp_ms is None else row.timestamp_ms, is_wide=True),
    Column("RIGHT TIME", lambda row: "-" if row.right_timestamp_ms is None else row.right_timestamp_ms, is_wide=True),
)


@takes_options
def verify(
    store: StoreArgument,
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this partition.", show_default=False)
    ] = None,
    log: Annotated[
        bool, typer.Option("--log/--no-log", help="Also replay the changelog, which says what is right.")
    ] = True,
    rate: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="MB",
            help="Megabytes a second that each node reads at most; 0: no bound.",
        ),
    ] = _RATE_MB,
    buckets: Annotated[
        int, typer.Option(min=1, max=BUCKETS_MAX, metavar="N", help="Buckets that keys are divided into.")
    ] = BUCKETS,
    patience: Annotated[
        float,
        typer.Option(min=0.0, metavar="SECONDS", help="For how long a partition is tried that can't be checked now."),
    ] = 60.0,
    restore: Annotated[
        bool, typer.Option("--restore", help="Have replicas that differ restored, one at a time, and check again.")
    ] = False,
    inquiry: Inquiry = Inquiry(),
) -> None:
    """Compare the replicas of a store with each other and with its changelog, at the same moment, while it serves.

    A node replays each partition's changelog into a store of its own, which takes as much disk as the partition. What
    differs is named: replica, partition and key, and the window or session. Versioned stores can't be compared.

    Exit codes: 0 all is equal, 1 something differs, 4 something could not be checked.

    Example: statehouse verify leader-boards --rate 50
    """
    how = Verification(buckets, int(rate * _MB), with_log=log, patience_s=patience)
    progress = _Progress()
    with inquiry.client(direct=False) as client, SumCalls(inquiry.router.tls, progress.see) as calls:
        known = client.describe(store)
        if partition is not None and partition >= known.partition_count:
            raise typer.BadParameter(f"{store} has {known.partition_count} partitions", param_hint="--partition")
        verifier = Verifier(how, calls, lambda: (client.partitions(store), client.fleet()))
        checked = []
        for number in range(known.partition_count) if partition is None else [partition]:
            found = verifier.check(store, number)
            checked += [found, *(_restored(verifier, found) if restore else ())]
    _print(inquiry, known, checked)
    newest = {each.partition: each for each in checked}.values()
    if any(each.buckets for each in newest):
        raise typer.Exit(ExitCode.ERROR)
    if any(each.obstacle is not None for each in newest):
        raise typer.Exit(ExitCode.UNAVAILABLE)


def _restored(verifier: Verifier, found: CheckedPartition) -> Iterator[CheckedPartition]:
    """Have what differs restored, one replica after the other; yield what is found after each."""
    tried: set[str] = set()
    while left := [name for name in found.wrong_nodes if name not in tried]:
        tried.add(left[0])
        output.note(f"partition {found.partition}: {left[0]} restores its replica")
        found = verifier.restore(found.store, found.partition, left[0])
        yield found


def _print(inquiry: Inquiry, store: Store, checked: Sequence[CheckedPartition]) -> None:
    copies = [row for each in checked for row in _copy_rows(each)]
    differences = [_difference_row(store, each.partition, one) for each in checked for one in each.differences]

    def tables(is_wide: bool) -> None:
        output.print_columns(_COPIES, copies, is_wide=is_wide)
        if differences:
            columns = (*_KEYS, *_SPANS.get(store.kind, ()), *_WRONG)
            output.print_columns(columns, differences[:_SHOWN_MAX], is_wide=is_wide)
        if len(differences) > _SHOWN_MAX:
            output.note(f"{len(differences) - _SHOWN_MAX:,} more: -o json has them")

    document = {"store": store.name, "copies": copies, "differences": differences}
    output.show(inquiry.fmt, document, [_name(row) for row in differences], tables)


def _name(row: _DifferenceRow) -> str:
    """Return what a script reads of a difference."""
    span = "-".join(str(each) for each in (row.start_ms, row.end_ms) if each is not None)
    return f"{row.replica}/{row.partition}/{row.key}{span and f'@{span}'}"


def _time(epoch_ms: int | None) -> str:
    return "-" if epoch_ms is None else output.wall_clock(epoch_ms)


def _copy_rows(checked: CheckedPartition) -> Iterator[_CopyRow]:
    if checked.obstacle is not None:
        yield _CopyRow(checked.partition, "-", None, None, None, f"could not be checked: {_why(checked.obstacle)}")
    for copy in checked.copies:
        wrong = sum(each.copy == copy.name for each in checked.differences)
        result = "equal" if not checked.buckets else "right" if not wrong else f"{wrong:,} entries differ"
        if checked.buckets and not checked.differences:
            result = "differed, until it was overwritten"
        elif checked.buckets and copy.name == LOG:
            result = "right"
        elif wrong and checked.is_cut:
            result = f"{result}, and more"
        yield _CopyRow(checked.partition, copy.name, copy.entries, copy.bytes, _batch(checked), result)


def _batch(checked: CheckedPartition) -> int | None:
    moment = checked.moment
    return None if moment is None else next((moment.batch(query) for query in moment), None)


def _why(failure: LookupFailure) -> str:
    return f"{failure.reason.name}: {failure.message}"


def _difference_row(store: Store, partition: int, found: Difference) -> _DifferenceRow:
    serde = SERDES.get(store.key_serde) or MissingSerde(store.key_serde)
    plain, start_ms, end_ms = _parsed(store.kind, found.key)
    try:
        key = serde.text(plain)
    except (ValueError, LookupFailure):
        key = f"0x{plain.hex()}"
    return _DifferenceRow(
        partition,
        found.copy,
        key,
        plain.hex(),
        start_ms,
        end_ms,
        found.wrong.value,
        None if found.found is None else found.found.timestamp_ms,
        None if found.right is None else found.right.timestamp_ms,
    )


def _parsed(kind: str, key: bytes) -> tuple[bytes, int | None, int | None]:
    """Return the key of an entry, and when its window or session starts, and its session ends."""
    if kind == WINDOW:
        window = WindowKey.from_entry_key(key)
        return window.key, window.start_ms, None
    if kind == SESSION:
        session = SessionKey.from_entry_key(key)
        return session.key, session.start_ms, session.end_ms
    return key, None, None


class _Progress:
    """Says from time to time how far a comparison is."""

    def __init__(self) -> None:
        self._every_s = _LINES_ON_A_TERMINAL_EVERY_S if sys.stderr.isatty() else _LINES_EVERY_S
        self._said_at = time.monotonic()
        self._lock = threading.Lock()

    def see(self, order: SumOrder, copy: Copy, progress: Any) -> None:  # noqa: ANN401 - a SumProgress
        """Take note of how far a copy is; called on any thread."""
        with self._lock:
            now = time.monotonic()
            if now - self._said_at < self._every_s:
                return
            self._said_at = now
        if progress.HasField("position"):
            end = progress.end_offset if progress.HasField("end_offset") else "?"
            what = f"the changelog is read: offset {progress.position:,} of {end:,}"
        else:
            what = f"{copy.name}: {progress.entries:,} entries"
        output.note(f"partition {order.partition}: {what}")
