"""`statehouse export`: a whole store as files, of one moment, while it serves."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.exits import Terminated, sigterm_raises
from statehouse.cli.export_files import Exported, ExportedPart, ExportFolder, PartFile
from statehouse.cli.export_forms import NOT_IN_FILES, WRITERS, ExportFormat
from statehouse.cli.options import SOME_ROUTER, StoreArgument, TimeoutOption
from statehouse.cli.reads import Inquiry, takes_options
from statehouse.client import Client, InputEnd, Store
from statehouse.client.columns import columns_of
from statehouse.client.frames import PATIENCE_S
from statehouse.client.store_frame import FramePart, StoreFrame, parts_of
from statehouse.contract.moments import NEWEST_TEXT, MomentToken
from statehouse.errors import ConfigurationError, LookupFailure, Reason

_LINES_EVERY_S: Final = 10.0
_LINES_ON_A_TERMINAL_EVERY_S: Final = 1.0


@takes_options
def export(
    store: StoreArgument,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Empty or new folder to write into.")],
    fmt_of_files: Annotated[
        ExportFormat, typer.Option("--format", help="Form of the files: Parquet, or a JSON document a line.")
    ] = ExportFormat.PARQUET,
    raw: Annotated[bool, typer.Option("--raw", help="Keys and values as the bytes in the changelog.")] = False,
    moment: Annotated[
        str, typer.Option(metavar="newest|TOKEN", help="The moment: the newest, or an earlier answer's.")
    ] = NEWEST_TEXT,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an export that was not finished, while its moment is kept.")
    ] = False,
    router: RouterAddress = SOME_ROUTER,
    timeout: TimeoutOption = 5.0,
) -> None:
    """Write a whole store into files, as it was at one moment, while it serves.

    FOLDER gets a file for each partition, and at last manifest.json, which names the moment, what it includes of the
    inputs, entries and checksums. Without it an export is not whole. One that was killed goes on with --resume while
    its moment is kept: a minute.

    Example: statehouse export leader-boards backup --format ndjson
    """
    given = None if moment == NEWEST_TEXT else _token(moment)
    with Inquiry(router=router, timeout=timeout).client(direct=False) as client, sigterm_raises():
        known = client.describe(store)
        export_of = _Export(client, known, fmt_of_files, raw=raw, timeout_s=timeout)
        into = ExportFolder(folder)
        try:
            with _saying_how_to_go_on(into):
                exported = export_of.write(into, given, resume=resume)
        finally:
            into.close()
    if exported.undecodable:
        output.note(f"{exported.undecodable:,} keys or values don't decode and are null: --raw has their bytes")
    output.print_facts(
        [
            ("store", exported.store),
            ("moment", exported.moment),
            ("batch", exported.batch_id),
            ("entries", exported.entries),
            ("files", len(exported.parts)),
            ("bytes", sum(part.bytes for part in exported.parts)),
        ]
    )


def _token(text: str) -> MomentToken:
    try:
        token = MomentToken.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--moment") from None
    if not token:
        raise typer.BadParameter("not a moment: it names no batch", param_hint="--moment")
    return token


@contextmanager
def _saying_how_to_go_on(into: ExportFolder) -> Iterator[None]:
    """Say at an end before time what can be done about it."""
    try:
        yield
    except LookupFailure as failure:
        if into.is_begun:
            failure.add_note(
                f"what {into.path} has is of a moment that is gone: begin anew, in another folder"
                if failure.reason is Reason.MOMENT_GONE
                else "go on by --resume, while its moment is kept"
            )
        raise
    except (KeyboardInterrupt, Terminated):
        if into.is_begun:
            output.note("go on by --resume within a minute: so long its moment is kept")
        raise


class _Export:
    """An export of a store into a folder."""

    def __init__(self, client: Client, store: Store, form: ExportFormat, *, raw: bool, timeout_s: float) -> None:
        self._client, self._store, self._form, self._raw = client, store, form, raw
        self._timeout_s = timeout_s
        self._frame = StoreFrame(store, columns_of(store, raw=raw), raw)
        self._parts = parts_of(store)

    def write(self, into: ExportFolder, given: MomentToken | None, *, resume: bool) -> Exported:
        """Write what is missing; return what there is then.

        Raises:
            LookupFailure: the store shows no moment, or not this one any more, or can't be read.
            ConfigurationError, ExportFailed: the folder can't be used.

        """
        begun, wanted = into.found(resume=resume), self._wanted()
        if begun is not None:
            if not begun.is_same(wanted) or (given is not None and str(given) != begun.moment):
                raise ConfigurationError(
                    f"{into.path} has an export of store {begun.store} as {begun.format}{' with --raw' * begun.raw}, "
                    f"of moment {begun.moment}: go on with the same, or take another folder"
                )
            given = MomentToken.parse(begun.moment)
        wanted = self._of_moment(wanted, given)
        kept = [] if begun is None else [part for part in begun.parts if into.is_whole(part)]
        exported = replace(wanted, parts=tuple(kept))
        into.note(exported)
        frame = replace(self._frame, moment=MomentToken.parse(exported.moment))
        progress = _Progress(self._store.partition_count, exported.entries)
        done = {part.partition for part in kept}
        for part in self._parts:
            if part.partition not in done:
                exported = exported.with_part(self._written(into, frame, part, progress))
                into.note(exported)
        exported = replace(exported, parts=tuple(sorted(exported.parts, key=lambda each: each.partition)))
        into.finish(exported)
        return exported

    def _wanted(self) -> Exported:
        """Return what is to be exported, of a moment that isn't known yet."""
        store = self._store
        return Exported(
            store.name,
            store.kind,
            store.key_serde,
            store.value_serde,
            store.partition_count,
            self._form.value,
            self._raw,
            moment="",
            query_id="",
            batch_id=0,
        )

    def _of_moment(self, wanted: Exported, given: MomentToken | None) -> Exported:
        """Return it of a moment that all partitions show."""
        agreed = self._client.frame_of_moment(
            self._frame, self._parts, given or NEWEST_TEXT, timeout=self._timeout_s
        ).moment
        assert agreed is not None  # noqa: S101 - else it has failed
        (query_id,) = agreed
        return replace(
            wanted,
            moment=str(agreed),
            query_id=query_id,
            batch_id=agreed.batch(query_id) or 0,
            source_ends=self._source_ends(agreed),
        )

    def _source_ends(self, moment: MomentToken) -> tuple[InputEnd, ...] | None:
        """Return what a moment includes of the inputs; None if the router can't say: it has restarted, or is older."""
        try:
            return self._client.describe_moment(self._store.name, moment, timeout=self._timeout_s).source_ends
        except LookupFailure as failure:
            output.note(f"the manifest won't say what the moment includes of the inputs: {failure}")
            return None

    def _written(self, into: ExportFolder, frame: StoreFrame, part: FramePart, progress: _Progress) -> ExportedPart:
        partition = part.partition
        assert partition is not None  # noqa: S101 - global stores show no moments
        name = f"part-{partition:05}.{self._form.value}"

        def fill(file: PartFile) -> None:
            writer = WRITERS[self._form](file, frame)
            for batch in self._client.frame_batches(frame, part, timeout=self._timeout_s, patience=PATIENCE_S):
                file.position = batch.column("position")[0].as_py()
                file.entries += batch.num_rows
                file.undecodable += batch.column("key").null_count + batch.column("value").null_count
                writer.write(batch.select([name for name in batch.schema.names if name not in NOT_IN_FILES]))
                progress.see(partition, batch.num_rows)
            writer.close()

        return into.write(partition, name, fill)


class _Progress:
    """Says from time to time how far an export is."""

    def __init__(self, partitions: int, entries: int) -> None:
        self._partitions, self._before, self._entries = partitions, entries, 0
        self._every_s = _LINES_ON_A_TERMINAL_EVERY_S if sys.stderr.isatty() else _LINES_EVERY_S
        self._began = self._said = time.monotonic()

    def see(self, partition: int, entries: int) -> None:
        """Take note of entries that were written."""
        self._entries += entries
        now = time.monotonic()
        if now - self._said >= self._every_s:
            self._said = now
            rate = self._entries / (now - self._began)
            output.note(
                f"partition {partition} of {self._partitions}: {self._before + self._entries:,} entries, {rate:,.0f} a "
                "second"
            )
