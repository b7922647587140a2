"""An application of one's own, and the one-machine cluster. Its imports happen when a command runs."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from statehouse.cli.exits import sigterm_raises
from statehouse.cli.options import DEFAULT_APPLICATION, RunDirOption
from statehouse.cli.output import note
from statehouse.local.new_application import Template
from statehouse.local.tls_files import DEFAULT_RUN_DIR

if TYPE_CHECKING:
    from statehouse.cli.watch_code import WatchedCode
    from statehouse.local.application_file import ApplicationFile
    from statehouse.local.applications import LocalApplication
    from statehouse.local.cluster import LocalCluster
    from statehouse.local.log_lines import FollowedLog

_DEFAULT_NODES: Final = 3
_CLASS_ARCHIVE: Final = "processor.spark.class_archive"
_LOOK_S: Final = 0.2


def new(
    name: Annotated[
        str,
        typer.Argument(help="The name of the application, its folder and its topics, as in hello.", show_default=False),
    ],
    template: Annotated[
        Template,
        typer.Option(
            help="What to begin with: sums by key; a database's table by Debezium; windows of time; tables that are "
            "joined."
        ),
    ] = Template.COUNTER,
) -> None:
    """Make a folder with an application that runs: topology, sample data, tests, settings.

    It is made in the working directory. `statehouse up` in it runs the application in a local cluster.
    """
    from statehouse.local.new_application import make_application  # noqa: PLC0415 - other commands need none of it

    folder, paths = make_application(Path(), name, template)
    print(f"{folder}/ has a new application:")
    for path in paths:
        print(f"  {path}")
    print(f"Run it:    cd {folder} && statehouse up")
    print("Test it:   python -m pytest   (needs pytest, and no Kafka)")


def up(
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="Application: the topology's module, as in hello.topology, or the name of an installed one, as tally. "
            rf" \[default: the one of this folder's statehouse.toml, else {DEFAULT_APPLICATION}]",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=26,
            help=rf"Query nodes: node-a, node-b, ...  \[default: as statehouse.toml says, else {_DEFAULT_NODES}]",
            show_default=False,
        ),
    ] = None,
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
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Stay attached, and start the processor again when the application's code changes. An error in the "
            "code is shown, and the next change tried.",
        ),
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Start a local cluster with an application: Kafka, Spark, nodes, a router, and its sample data if it has one.

    First Spark analyses its queries, as in `statehouse check`.

    Returns once lookups are answered, and leaves the cluster running; `statehouse down` stops it. `statehouse new`
    makes an application to begin with.
    """
    from statehouse.runtime.extras import ensure_installed  # noqa: PLC0415 - as above

    # The page is a part of the cluster, too, and the last one that starts.
    ensure_installed("`statehouse up`", "processor", "http")
    from statehouse.cli.package_check import ensure_none_in  # noqa: PLC0415
    from statehouse.cli.start_display import shown_progress  # noqa: PLC0415
    from statehouse.cli.watch_code import begin_anew, start_watched  # noqa: PLC0415
    from statehouse.local.application_file import ApplicationFile  # noqa: PLC0415
    from statehouse.local.applications import ApplicationError  # noqa: PLC0415
    from statehouse.local.class_archives import make_in_background  # noqa: PLC0415
    from statehouse.local.cluster import LocalCluster  # noqa: PLC0415
    from statehouse.local.ports import ClusterPorts  # noqa: PLC0415

    begin = time.monotonic()
    ensure_none_in(Path.cwd())
    ports = ClusterPorts(kafka_port, router_port, http_port, first_node_port)
    file = ApplicationFile.of(Path.cwd())
    try:
        application = _application(app, file, run_dir)
    except ApplicationError as broken:
        if not watch:
            raise
        begin_anew(broken, run_dir)
    count = nodes or (file.nodes if file else None) or _DEFAULT_NODES
    with shown_progress() as progress:
        cluster = LocalCluster(run_dir, application, ports, count, tls=tls, progress=progress)
        code = _watched(cluster) if watch else None
        if not cluster.is_running:
            with sigterm_raises():
                cluster.start(check=True) if code is None else start_watched(cluster, code)
            note(f"up in {time.monotonic() - begin:.1f} s; everything is in {cluster.run_dir}")
            make_in_background(_CLASS_ARCHIVE)  # the next start takes less time then
        else:
            how = "with" if cluster.tls else "without"
            note(f"already up in {cluster.run_dir}, {how} TLS; `statehouse down` stops it")
    _print_next(cluster)
    if foreground or watch:
        _stay(cluster, code)


def logs(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PART]...", help="As `statehouse status` names them.  [default: all]", show_default=False
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines; Ctrl-C ends it.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines to begin with, of each log.")] = 20,
    every_line: Annotated[
        bool, typer.Option("--all", help="Also what Spark says at each start, and its Python workers for each task.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Show the last lines of the local cluster's logs, of parts that have ended, too; each line has its part's name."""
    from statehouse.local.log_lines import FollowedLog, chosen_logs, is_news  # noqa: PLC0415 - as above

    chosen = chosen_logs(run_dir, parts or [])
    width = max(map(len, chosen))
    is_shown = (lambda _line: True) if every_line else is_news
    followed = [
        ("" if len(chosen) == 1 else f"{part:<{width}} | ", FollowedLog(path, lines, is_shown))
        for part, paths in chosen.items()
        for path in paths
    ]
    _print_lines(followed)
    while follow:
        if not any(path.exists() for paths in chosen.values() for path in paths):
            note("the logs were deleted")
            return
        time.sleep(_LOOK_S)
        _print_lines(followed)


def restart(
    parts: Annotated[list[str], typer.Argument(metavar="PART...", help="As `statehouse status` names them.")],
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Stop parts of the local cluster and start them again, one after the other; also one that has ended."""
    from statehouse.cli.start_display import shown_progress  # noqa: PLC0415
    from statehouse.local.cluster import cluster_of  # noqa: PLC0415

    with shown_progress() as progress, sigterm_raises():
        cluster = cluster_of(run_dir, progress=progress)
        for part in [cluster.part(name) for name in parts]:
            cluster.restart(part)


def down(
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Keep topics, state and checkpoints for the next `up`.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Stop the local cluster; deletes its data unless told to keep it."""
    from statehouse.cli.start_display import shown_progress  # noqa: PLC0415
    from statehouse.local.cluster import cluster_of  # noqa: PLC0415
    from statehouse.local.cluster_state import delete_data, is_run_directory, locked  # noqa: PLC0415

    if not (run_dir / "state.json").exists():
        note(f"nothing is running in {run_dir.resolve()}")
        if is_run_directory(run_dir) and not keep_data:
            with locked(run_dir):
                delete_data(run_dir)
        return
    begin = time.monotonic()
    with shown_progress() as progress:
        cluster = cluster_of(run_dir, progress=progress)
        cluster.stop(keep_data=keep_data)
    kept = f"; data kept in {cluster.run_dir}" if keep_data else ""
    note(f"down in {time.monotonic() - begin:.1f} s{kept}")


def _application(name: str | None, file: ApplicationFile | None, run_dir: Path) -> LocalApplication:
    """Return the application that is asked for; if none is, the one that runs, else the default one."""
    from statehouse.local.applications import find_application  # noqa: PLC0415 - as above
    from statehouse.local.cluster_state import ClusterState  # noqa: PLC0415

    found = ClusterState.load(run_dir)
    if name is None and found is not None and found.is_alive:
        return found.application
    return find_application(name or (file.app if file else None) or DEFAULT_APPLICATION)


def _print_next(cluster: LocalCluster) -> None:
    """Print what to try: a lookup of a key that exists for each store, and the router's address."""
    address = cluster.router.address
    router = "" if cluster.run_dir == DEFAULT_RUN_DIR.resolve() else f" --router {address}"
    scheme = "http" if cluster.tls is None else "https"
    print(f"page       {scheme}://{cluster.http.address}/   (JSON: /v1)")
    if cluster.application.http_api:
        print(f"HTTP API   {scheme}://{cluster.http.address}{cluster.application.http_page}")
    print(f"router     {address}   (gRPC, reflection on)")
    contents = cluster.contents()
    for content in contents:
        label = "try   " if content.key is not None else "empty "
        print(f"{label}     statehouse {content.words}{router}")
    print(f"fleet      statehouse status{router}")
    shown = "-plaintext"
    if cluster.tls is not None:
        shown = f"-cacert {cluster.tls.ca} -cert {cluster.tls.certificate} -key {cluster.tls.key}"
        print("not secured: Kafka. Whoever has a login on this machine can read and write its topics, TLS or not")
    grpcurl = typed_program("grpcurl")
    if grpcurl is None:
        return
    print(f"grpcurl    {grpcurl} {shown} {address} list")
    for request in filter(None, (content.request for content in contents)):
        print(f"           {grpcurl} {shown} -d {shlex.quote(request)} {address} statehouse.v1.QueryService/Get")
        break


def typed_program(name: str) -> str | None:
    """Return how a program on our PATH is typed here by somebody with another PATH; None if there is none."""
    found = shutil.which(name)
    if found is None:
        return None
    return shlex.quote(os.path.relpath(found) if Path(found).is_relative_to(Path.cwd()) else found)


def _print_lines(followed: Iterable[tuple[str, FollowedLog]]) -> None:
    for prefix, log in followed:
        for line in log.lines():
            print(f"{prefix}{line}", flush=True)


def _watched(cluster: LocalCluster) -> WatchedCode:
    from statehouse.cli.watch_code import WatchedCode  # noqa: PLC0415 - as above

    application = cluster.application
    folder = Path(application.import_from) if application.import_from else cluster.folder
    return WatchedCode(application.topology, folder, cluster.run_dir)


def _stay(cluster: LocalCluster, code: WatchedCode | None) -> None:
    """Wait until a part fails, somebody interrupts, or another command stops the cluster; stop everything then.

    When a part has failed the data stays: the logs say why.
    """
    from statehouse.cli.start_display import shown_progress  # noqa: PLC0415
    from statehouse.cli.watch_code import stay  # noqa: PLC0415
    from statehouse.local.cluster_state import ClusterStopped  # noqa: PLC0415
    from statehouse.local.errors import LocalError  # noqa: PLC0415

    try:
        with sigterm_raises():
            stay(cluster, code)
    except ClusterStopped:
        note("another command has stopped it")
        return
    except BaseException as failure:
        with shown_progress() as cluster.progress:
            cluster.stop(keep_data=isinstance(failure, LocalError))
        raise
