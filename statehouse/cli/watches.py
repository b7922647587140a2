"""`statehouse watch`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated

import typer

from statehouse.cli import output
from statehouse.cli.addresses import RouterAddress
from statehouse.cli.options import SOME_ROUTER, StoreArgument
from statehouse.cli.reads import PrefixOption, WatchedKeyArgument, naming_stores, takes_options
from statehouse.client import Client, Freshness, KeyLike, Update, WatchPosition
from statehouse.client.answers import AnyKey
from statehouse.contract.consistency import ANY
from statehouse.contract.version_names import plain_store, store_at, version_of
from statehouse.contract.watch_marks import mark_in


@takes_options
def watch(
    store: StoreArgument,
    key: WatchedKeyArgument = None,
    prefix: PrefixOption = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Only this partition.", show_default=False)] = None,
    resume: Annotated[
        list[str] | None,
        typer.Option(metavar="POSITION", help="Where an earlier watch got to, as it said at its end; may be repeated."),
    ] = None,
    by_moment: Annotated[
        bool, typer.Option("--by-moment", help="Show whole batches, and after each of them which one it was.")
    ] = False,
    freshness: Freshness = ANY,
    raw: Annotated[bool, typer.Option("--raw", help="Show keys and values as the bytes in the changelog.")] = False,
    router: RouterAddress = SOME_ROUTER,
) -> None:
    """Show what a key, a prefix or a store holds now, then every change as it comes: one JSON document a line.

    The watch goes on until it is interrupted, also when partitions move, and says at its end how to resume it. The
    bounds hold for the first answer.

    Example: statehouse watch leader-boards 1
    """
    if key is not None and prefix is not None:
        raise typer.BadParameter("--prefix excludes a key")
    if by_moment:
        if len(resume or ()) > 1:
            raise typer.BadParameter("a watch by moment goes on after one batch", param_hint="--resume")
        _watch_batches(store, key, prefix, partition, _mark(resume[0]) if resume else None, freshness, router, raw=raw)
        return
    positions = [_position(text) for text in resume or ()]
    with (
        Client(router.target, tls=router.tls) as client,
        naming_stores(client),
        client.watch(
            store,
            key,
            prefix=prefix,
            partition=partition,
            resume=positions,
            freshness=freshness,
            raw=raw,
        ) as watched,
    ):
        try:
            for update in watched:
                _print(update)
        finally:
            if watched.positions:
                output.note(f"resume with: {_resume_options(watched.positions)}")


def _watch_batches(
    store: str,
    key: AnyKey | None,
    prefix: KeyLike | None,
    partition: int | None,
    after: str | None,
    freshness: Freshness,
    router: RouterAddress,
    *,
    raw: bool,
) -> None:
    last = after
    with (
        Client(router.target, tls=router.tls) as client,
        naming_stores(client),
        client.watch_batches(
            store, key, prefix=prefix, partition=partition, after=after, freshness=freshness, raw=raw
        ) as batches,
    ):
        try:
            for batch in batches:
                for update in batch.updates:
                    _print(update)
                last = batch.token
                output.print_json_line({"moment": str(batch.moment), "resume": last}, is_live=True)
        finally:
            if last is not None:
                output.note(f"resume with: --resume {last}")


def _print(update: Update) -> None:
    if update.gap:
        output.note(f"partition {update.partition}: changes may have been missed; its current values follow")
    for change in update.changes:
        shown = {"partition": update.partition, **dataclasses.asdict(change), "current": update.current}
        output.print_json_line(shown, is_live=True)


def _resume_options(positions: Iterable[WatchPosition]) -> str:
    return " ".join(
        f"--resume {each.partition}:{each.offset}:{store_at(each.topic_id, each.version)}" for each in positions
    )


def _position(text: str) -> WatchPosition:
    """Read a position as `_resume_options` writes it."""
    try:
        partition, offset, *topic_id = text.split(":", 2)
        topic = "".join(topic_id)
        return WatchPosition(int(partition), int(offset), plain_store(topic), version=version_of(topic))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no position: PARTITION:OFFSET:TOPIC_ID", param_hint="--resume") from None


def _mark(text: str) -> str:
    """Return the token of a mark."""
    try:
        mark_in(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--resume") from None
    return text
