"""`statehouse node`: run a query node. `statehouse state`: show the stores that a node has on disk."""

from __future__ import annotations

import asyncio
import resource
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from query_service.inspect import stores_in
from query_service.node import run_node
from statehouse.cli.declared import takes_settings
from statehouse.cli.options import OutputOption
from statehouse.cli.output import OutputFormat, print_json, print_table
from statehouse.observability import logs
from statehouse.settings import LoadedSettings, NodeSettings


@takes_settings(NodeSettings)
def node(loaded: LoadedSettings[NodeSettings]) -> None:
    """Run a query node until SIGTERM (hands its active tasks over, then leaves the fleet) or SIGINT (stops at once).

    With an instance id the node is a static member: stopped by SIGINT or killed, it keeps its tasks for the session
    timeout, and a restart within that time moves nothing. Without one it is dynamic: it makes up a name for this run,
    and its tasks move when it leaves, at SIGINT at once, after a kill at the session timeout.

    Every option can also be given as STATEHOUSE_<NAME> or in a TOML file. `statehouse config show node` takes the same
    options and prints what would be in force.
    """
    settings = loaded.settings
    logs.configure(settings.log_level)
    # A store has a dozen files open. So take the highest limit that the system allows.
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    asyncio.run(run_node(settings))


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
    stores = stores_in(directory)
    if output is OutputFormat.JSON:
        print_json(stores)
        return
    print_table(
        (
            "task",
            "store",
            "partition",
            "position",
            "topic",
            "at end",
            "format",
            "bytes",
            "keys (about)",
            "locked by",
            "note",
        ),
        [
            (
                store.task,
                store.store,
                store.partition,
                store.position,
                store.topic,
                store.at_end,
                store.format_version,
                store.size_bytes,
                store.keys,
                store.locked_by or "-",
                store.note or "-",
            )
            for store in stores
        ],
    )
