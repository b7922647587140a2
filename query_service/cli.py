"""`statehouse node`: run a query node. `statehouse state`: look at what one has on disk."""

from __future__ import annotations

import asyncio
import resource
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from query_service.inspect import stores_in
from query_service.node import run_node
from statehouse.cli.options import OutputOption
from statehouse.cli.output import Output, print_json, print_table
from statehouse.observability import logs
from statehouse.settings import NodeSettings, load


def node(
    instance_id: Annotated[
        str | None, typer.Option(help="The node's stable name; without one it is a dynamic member.")
    ] = None,
    application_id: Annotated[str | None, typer.Option(help="Application whose stores to serve.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka bootstrap servers.")] = None,
    bind_host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    node_port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = None,
    advertised_host: Annotated[str | None, typer.Option(help="Address others reach the node at.")] = None,
    advertised_port: Annotated[int | None, typer.Option(help="Port others reach the node at.")] = None,
    rack: Annotated[str | None, typer.Option(help="Rack; standbys are spread over racks.")] = None,
    capacity: Annotated[int | None, typer.Option(help="Weight of the node's share of the tasks.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where state is kept.")] = None,
    block_cache_bytes: Annotated[int | None, typer.Option(help="Memory of all RocksDB stores.")] = None,
    write_buffer_bytes: Annotated[int | None, typer.Option(help="The memtables' part of it.")] = None,
    memory_store_max_bytes: Annotated[
        int | None, typer.Option(help="Byte budget of a partition of an in-memory store.")
    ] = None,
    state_cleanup_delay_ms: Annotated[
        int | None, typer.Option(help="How long the state of a lost task is kept.")
    ] = None,
    restore_batch_records: Annotated[int | None, typer.Option(help="Records written at once in a restore.")] = None,
    max_open_scans: Annotated[int | None, typer.Option(help="Most scans and exact counts at once.")] = None,
    scan_timeout_ms: Annotated[int | None, typer.Option(help="Longest that one of them may read.")] = None,
    max_position_waits: Annotated[int | None, typer.Option(help="Most requests that wait for a position.")] = None,
    position_wait_timeout_ms: Annotated[
        int | None, typer.Option(help="Longest such wait without a deadline of its own.")
    ] = None,
    max_watches: Annotated[int | None, typer.Option(help="Most watches at once.")] = None,
    watch_tail_bytes: Annotated[int | None, typer.Option(help="Latest changes kept per store partition.")] = None,
    heartbeat_interval_ms: Annotated[int | None, typer.Option(help="How often to tell the fleet.")] = None,
    session_timeout_ms: Annotated[int | None, typer.Option(help="Silence after which tasks are moved.")] = None,
    drain_timeout_ms: Annotated[int | None, typer.Option(help="Longest hand-over at SIGTERM.")] = None,
    proxy: Annotated[
        str | None, typer.Option(help="statehouse-proxy's path; auto takes it from PATH, if there; none: without.")
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of /metrics; unset serves none.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run a query node until SIGTERM (hands its active tasks over, then leaves the fleet) or SIGINT (stops at once).

    With an instance id the node is a static member: stopped by SIGINT or killed, it keeps its tasks for the session
    timeout, and a restart within that time moves nothing. Without one it is dynamic: it makes up a name for this run,
    and its tasks move when it leaves, at SIGINT at once, after a kill at the session timeout.

    Every option can also be given as STATEHOUSE_<NAME> or in the TOML file that STATEHOUSE_CONFIG names.
    """
    flags = dict(locals())
    settings = load(NodeSettings, flags)
    logs.configure(settings.log_level)
    # A store has a dozen files open; as far as the system lets us, that is no reason to hold fewer.
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
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the stores in a state directory: position, age, size, and who has them open.

    Needs no broker and no node, and changes no data. A store that a node has open is not opened; what is known of it
    then comes from the task's .checkpoint file.
    """
    stores = stores_in(directory)
    if output is Output.JSON:
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
