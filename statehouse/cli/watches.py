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
from statehouse.client import Client, Freshness, Update, WatchPosition
from statehouse.contract.consistency import ANY


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


def _print(update: Update) -> None:
    if update.gap:
        output.note(f"partition {update.partition}: changes may have been missed; its current values follow")
    for change in update.changes:
        shown = {"partition": update.partition, **dataclasses.asdict(change), "current": update.current}
        output.print_json_line(shown, is_live=True)


def _resume_options(positions: Iterable[WatchPosition]) -> str:
    return " ".join(f"--resume {each.partition}:{each.offset}:{each.topic_id}" for each in positions)


def _position(text: str) -> WatchPosition:
    """Read a position as `_resume_options` writes it."""
    try:
        partition, offset, *topic_id = text.split(":", 2)
        return WatchPosition(int(partition), int(offset), "".join(topic_id))
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no position: PARTITION:OFFSET:TOPIC_ID", param_hint="--resume") from None
