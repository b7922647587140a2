"""`statehouse deploy`: a version of an application, while another one serves."""

from __future__ import annotations

import string
from typing import Annotated

import typer

from statehouse.cli.exits import sigterm_raises
from statehouse.cli.kafka_options import takes_application
from statehouse.cli.options import RunDirOption
from statehouse.cli.output import note
from statehouse.cli.start_display import shown_progress
from statehouse.cli.versions import KafkaTimeoutOption, RouterOption, VersionArgument, change, router_named
from statehouse.contract.version_names import application_of
from statehouse.contract.versions import Versions
from statehouse.local.applications import find_application
from statehouse.local.cluster import LocalCluster
from statehouse.local.cluster_state import ClusterState, DeployedVersion
from statehouse.local.tls_files import DEFAULT_RUN_DIR
from statehouse.settings import LoadedSettings
from statehouse.settings.common import ApplicationIdSettings

_AT_THE_START = (
    "Spark's state can't be taken over from another version: it begins with an empty checkpoint, and reads its sources "
    "from where they begin. What they no longer have, it never sees."
)


@takes_application
def deploy(
    loaded: LoadedSettings[ApplicationIdSettings],
    version: VersionArgument,
    app: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help=r"Topology of the version, in a local cluster.  \[default: of the version that serves]",
            show_default=False,
        ),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(
            min=0, max=100_000, help="Partitions of the stores whose code names none; 0: as many as the largest source."
        ),
    ] = 0,
    nodes: Annotated[int, typer.Option(min=1, max=26, help="Its query nodes, in a local cluster.")] = 2,
    router: RouterOption = None,
    timeout: KafkaTimeoutOption = 10.0,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Begin a version of an application, while another one serves: with topics, checkpoint and nodes of its own.

    In a local cluster it is started. Elsewhere routers learn of it, and what to start is printed. It serves nobody
    until it is promoted; `statehouse get STORE@VERSION KEY` reads it.
    """
    note(_AT_THE_START)
    name = loaded.settings.application_id

    def with_it(versions: Versions) -> Versions:
        # A start that failed is tried again by the same command.
        is_there = version in versions.all and version != versions.serving
        return versions if is_there else versions.deployed(version)

    known = change(loaded.settings, with_it, timeout, router_named(router))
    state = ClusterState.load(run_dir)
    if state is None or not state.is_alive or state.application.application_id != name:
        more = f" --store-partitions {partitions}" if partitions else ""
        note(f"routers know version {version}; now start its processor, or `statehouse attach`, and its nodes:")
        print(f"statehouse process MODULE --application-version {version}{more}")
        print(f"statehouse node --application-id {application_of(name, version)} --instance-id NODE")
        return
    topology = find_application(app).topology if app is not None else state.topology_of(known.serving)
    names = tuple(f"node-{version}-{letter}" for letter in string.ascii_lowercase[:nodes])
    with shown_progress() as progress, sigterm_raises():
        cluster = LocalCluster(run_dir, state.application, progress=progress)
        cluster.deploy(DeployedVersion(version, topology, partitions, names))
    note(f"version {version} is built beside {known.serving}; `statehouse promote {version}` has it serve")
