"""The command line of a router: `statehouse router` and `python -m router`."""

from __future__ import annotations

from typing import Annotated

import typer

from router.server import run
from router.workers import run_workers
from statehouse.errors import ConfigurationError
from statehouse.settings import RouterSettings, load


def router(
    bootstrap: Annotated[str | None, typer.Option(help="Kafka bootstrap servers, host:port[,host:port].")] = None,
    application_id: Annotated[str | None, typer.Option(help="Application id.")] = None,
    bind_host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    router_port: Annotated[int | None, typer.Option("--port", help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that share the port.")] = None,
    request_timeout_ms: Annotated[
        int | None, typer.Option(help="Longest a request without a deadline of its own may take.")
    ] = None,
    attempt_timeout_ms: Annotated[
        int | None, typer.Option(help="A node that has not answered by then is passed over for the next.")
    ] = None,
    hedge_quantile: Annotated[
        float | None, typer.Option(help="A lookup slower than this share of its kind goes to a second replica, too.")
    ] = None,
    hedge_min_ms: Annotated[int | None, typer.Option(help="But not before.")] = None,
    retry_budget_percent: Annotated[
        float | None, typer.Option(help="Most hedges and retries per 100 lookups, beside 5 a second.")
    ] = None,
    max_lookups: Annotated[int | None, typer.Option(help="Most lookups at once; further ones are refused.")] = None,
    max_watches: Annotated[int | None, typer.Option(help="Most watches at once.")] = None,
    watch_resume_timeout_ms: Annotated[
        int | None, typer.Option(help="Longest a watch waits for a replica that can go on.")
    ] = None,
    hold_window_ms: Annotated[
        int | None, typer.Option(help="Longest that lookups are held which nobody can answer yet; 0: not at all.")
    ] = None,
    hold_max: Annotated[int | None, typer.Option(help="Most lookups held at once.")] = None,
    hold_min_interval_ms: Annotated[
        int | None, typer.Option(help="Least time from the end of a partition's window to its next one.")
    ] = None,
    hold_dry_run: Annotated[
        bool | None, typer.Option("--hold-dry-run/--no-hold-dry-run", help="Only count what would have been held.")
    ] = None,
    router_rack: Annotated[
        str | None,
        typer.Option(
            "--rack", help="The router's rack: bounded reads that any replica may answer are asked there first."
        ),
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="statehouse-proxy's path; auto takes it from PATH, if there; none: without.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Port of /metrics; unset serves none. Each further worker has the next port.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="Least level logged.")] = None,
) -> None:
    """Run a router: one address that answers for every partition of every store.

    What is not given is taken from STATEHOUSE_... variables, then from the file STATEHOUSE_CONFIG names.
    """
    flags = {
        "bootstrap": bootstrap,
        "application_id": application_id,
        "bind_host": bind_host,
        "router_port": router_port,
        "workers": workers,
        "request_timeout_ms": request_timeout_ms,
        "attempt_timeout_ms": attempt_timeout_ms,
        "hedge_quantile": hedge_quantile,
        "hedge_min_ms": hedge_min_ms,
        "retry_budget_percent": retry_budget_percent,
        "max_lookups": max_lookups,
        "max_watches": max_watches,
        "watch_resume_timeout_ms": watch_resume_timeout_ms,
        "hold_window_ms": hold_window_ms,
        "hold_max": hold_max,
        "hold_min_interval_ms": hold_min_interval_ms,
        "hold_dry_run": hold_dry_run,
        "router_rack": router_rack,
        "proxy": proxy,
        "metrics_port": metrics_port,
        "log_level": log_level,
    }
    try:
        settings = load(RouterSettings, flags)
        if settings.workers == 1:
            run(settings)
        else:
            run_workers(settings)
    except ConfigurationError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
