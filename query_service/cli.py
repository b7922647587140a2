"""`statehouse node`: run a query node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from query_service.node import run_node
from statehouse.observability import logs
from statehouse.settings import NodeSettings, load


def node(
    instance_id: Annotated[str | None, typer.Option(help="The node's stable name.")] = None,
    application_id: Annotated[str | None, typer.Option(help="Application whose stores to serve.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka bootstrap servers.")] = None,
    bind_host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    node_port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = None,
    advertised_host: Annotated[str | None, typer.Option(help="Address others reach the node at.")] = None,
    advertised_port: Annotated[int | None, typer.Option(help="Port others reach the node at.")] = None,
    rack: Annotated[str | None, typer.Option(help="Rack; standbys are spread over racks.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Where state is kept.")] = None,
    memory_store_max_bytes: Annotated[
        int | None, typer.Option(help="Byte budget of a partition of an in-memory store.")
    ] = None,
    heartbeat_interval_ms: Annotated[int | None, typer.Option(help="How often to tell the fleet.")] = None,
    session_timeout_ms: Annotated[int | None, typer.Option(help="Silence after which tasks are moved.")] = None,
    drain_timeout_ms: Annotated[int | None, typer.Option(help="Longest hand-over at SIGTERM.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run a query node until SIGTERM (hands its active tasks over first) or SIGINT (stops at once).

    Every option can also be given as STATEHOUSE_<NAME> or in the TOML file that STATEHOUSE_CONFIG names.
    """
    flags = dict(locals())
    settings = load(NodeSettings, flags)
    logs.configure(settings.log_level)
    asyncio.run(run_node(settings))
