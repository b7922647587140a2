"""`statehouse node`: run a query node. `statehouse state`: show the stores that a node has on disk."""

from __future__ import annotations

import resource
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from query_service.inspect import StoreOnDisk, stores_in
from query_service.node import run_node
from statehouse.cli.declared import takes_settings
from statehouse.cli.output import Column, OutputFormat, OutputOption, show_items
from statehouse.observability import logs
from statehouse.settings import LoadedSettings, NodeSettings


@takes_settings(NodeSettings)
def node(loaded: LoadedSettings[NodeSettings]) -> None:
    """Run a query node until SIGTERM (hands its active tasks over, then leaves the fleet) or SIGINT (immediate stop).

    With an instance id the node is a static member. Stopped by SIGINT or killed, it keeps its tasks for the session
    timeout, and a restart within that time moves nothing. Without one it is dynamic: it makes up a name for this run.
    Its tasks move when it leaves: immediately at SIGINT, and at the session timeout after a kill.

    Every option can also be given as STATEHOUSE_<NAME> or in a TOML file. `statehouse config show node` takes the same
    options and prints what would be in force.
    """
    settings = loaded.settings
    logs.configure(settings.log_level)
    # A store has a dozen files open. So take the highest limit that the system allows.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    run_node(settings)


_STORES: Final = (
    Column[StoreOnDisk]("task", lambda store: store.task),
    Column[StoreOnDisk]("store", lambda store: store.store),
    Column[StoreOnDisk]("partition", lambda store: store.partition),
    Column[StoreOnDisk]("position", lambda store: store.position),
    Column[StoreOnDisk]("topic", lambda store: store.topic),
    Column[StoreOnDisk]("at end", lambda store: store.at_end),
    Column[StoreOnDisk]("format", lambda store: store.format_version),
    Column[StoreOnDisk]("bytes", lambda store: store.size_bytes),
    Column[StoreOnDisk]("keys (about)", lambda store: store.keys),
    Column[StoreOnDisk]("locked by", lambda store: store.locked_by or "-"),
    Column[StoreOnDisk]("note", lambda store: store.note or "-"),
    Column[StoreOnDisk]("topic id", lambda store: store.topic_id, is_wide=True),
    Column[StoreOnDisk]("path", lambda store: store.path, is_wide=True),
)


class StateAction(StrEnum):
    """What `statehouse state` does."""

    INSPECT = "inspect"


def state(
    action: Annotated[StateAction, typer.Argument(help="inspect: show each task's stores.", show_default=False)],  # noqa: ARG001 - there is only one so far
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A node's state_dir, or a folder in it.", show_default=False),
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the stores in a state directory: position, age, size, and who has them open.

    Needs no broker and no node, and changes no data. A store that a node has open is not opened; its facts then come
    from the task's .checkpoint file.
    """
    show_items(output, _STORES, stores_in(directory), lambda store: store.path)
