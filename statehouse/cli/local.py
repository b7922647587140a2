"""`statehouse up` and `down`: the one-machine cluster. Its imports happen when a command runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from statehouse.cli.exits import sigterm_raises
from statehouse.cli.options import DEFAULT_APPLICATION, RUN_DIR, RunDirOption
from statehouse.cli.output import note

if TYPE_CHECKING:
    from statehouse.local.cluster import ClusterProgress, LocalCluster

_WATCH_S = 0.5


def up(
    nodes: Annotated[int, typer.Option(min=1, max=26, help="Query nodes: node-a, node-b, ...")] = 3,
    kafka_port: Annotated[int, typer.Option(min=0, max=65_535, help="Kafka's port; 0 takes a free one.")] = 9092,
    router_port: Annotated[int, typer.Option(min=0, max=65_535, help="The router's port.")] = 7100,
    http_port: Annotated[int, typer.Option(min=0, max=65_535, help="The HTTP API's port.")] = 7000,
    first_node_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="The first node's port; the others follow.")
    ] = 7101,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="Encrypt all calls and hold callers to rules, with certificates made for it."),
    ] = False,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay attached; Ctrl-C stops everything and cleans up.")
    ] = False,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Start a local cluster with the leaderboard: Kafka, Spark, nodes, router, HTTP API and sample data.

    Returns once lookups are answered, and leaves the cluster running; `statehouse down` stops it.
    """
    from statehouse.local.cluster import ClusterPorts, cluster_of  # noqa: PLC0415 - other commands need none of it

    begin = time.monotonic()
    ports = ClusterPorts(kafka_port, router_port, http_port, first_node_port)
    cluster = cluster_of(run_dir, DEFAULT_APPLICATION, ports, nodes, tls=tls, progress=show_progress)
    if cluster.is_running:
        how = "with" if cluster.tls else "without"
        note(f"already up in {cluster.run_dir}, {how} TLS; `statehouse down` stops it")
    else:
        with sigterm_raises():
            cluster.start()
        note(f"up in {time.monotonic() - begin:.1f} s; everything is in {cluster.run_dir}")
    _print_next(cluster)
    if foreground:
        _watch(cluster)


def down(
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep topics, state and checkpoints for the next `up`.")
    ] = False,
    run_dir: RunDirOption = RUN_DIR,
) -> None:
    """Stop the local cluster; deletes its data unless told to keep it."""
    from statehouse.local.cluster import cluster_of  # noqa: PLC0415 - as above

    if not (run_dir / "state.json").exists() and (keep_data or not run_dir.exists()):
        note(f"nothing is running in {run_dir.resolve()}")
        return
    cluster = cluster_of(run_dir, DEFAULT_APPLICATION, progress=show_progress)
    begin = time.monotonic()
    cluster.stop(keep_data=keep_data)
    kept = f"; data kept in {cluster.run_dir}" if keep_data else ""
    note(f"down in {time.monotonic() - begin:.1f} s{kept}")


def show_progress(step: ClusterProgress) -> None:
    """Show progress, a line a step."""
    if step.event == "starting":
        note(f"{step.part:<12} starting")
    else:
        detail = f"  {step.detail}" if step.detail else ""
        note(f"{step.part:<12} {step.event} {'in' if step.event == 'ready' else 'after'} {step.seconds:.1f} s{detail}")


def _print_next(cluster: LocalCluster) -> None:
    store, key = cluster.application.store, cluster.application.key
    print(f"HTTP API   http://{cluster.http.address}{cluster.application.http_page}")
    print(f"router     {cluster.router.address}   (gRPC, reflection on)")
    print(f"try        statehouse get {store} {key} --router {cluster.router.address}")
    if cluster.tls is not None:
        shown = f"-cacert {cluster.tls.ca} -cert {cluster.tls.certificate} -key {cluster.tls.key}"
        print(f"grpcurl    grpcurl {shown} {cluster.router.address} list")


def _watch(cluster: LocalCluster) -> None:
    """Wait until a part fails or somebody interrupts; stop everything then."""
    note("in the foreground; Ctrl-C stops everything")
    try:
        with sigterm_raises():
            while True:
                cluster.check()
                time.sleep(_WATCH_S)
    finally:
        cluster.stop()
