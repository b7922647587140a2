"""`statehouse retire`: deletes a version of an application that doesn't serve."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from processor.run.reset import carry_out, delete_topics, plan_reset, topics_read_by
from statehouse.cli.kafka_options import takes_application
from statehouse.cli.options import RunDirOption
from statehouse.cli.output import note
from statehouse.cli.versions import (
    ForceOption,
    KafkaTimeoutOption,
    RouterOption,
    VersionArgument,
    change,
    known_versions,
    router_named,
)
from statehouse.contract.topology import control_topic_names, dead_letters_topic
from statehouse.contract.version_names import FIRST, application_of
from statehouse.contract.versions import VersionRefused, Versions
from statehouse.kafka import clients
from statehouse.kafka.access import failures_told
from statehouse.local.cluster import LocalCluster
from statehouse.local.cluster_state import ClusterState
from statehouse.local.tls_files import DEFAULT_RUN_DIR
from statehouse.runtime.clocks import process_clock
from statehouse.settings import LoadedSettings
from statehouse.settings.common import ApplicationIdSettings


@takes_application
def retire(
    loaded: LoadedSettings[ApplicationIdSettings],
    version: VersionArgument,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=r"The checkpoint_dir of its processor.  \[default: the local cluster's]",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    force: ForceOption = False,
    router: RouterOption = None,
    timeout: KafkaTimeoutOption = 10.0,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Delete a version that doesn't serve: its topics and checkpoints; asks first.

    Stop its processor and its nodes before, and delete the nodes' state directories; in a local cluster both happens.
    Never the version that serves, or whose changelogs another one reads; nor one that is kept for a rollback, unless
    forced. Sources are kept. If it is cut off, run it again with --force.
    """
    settings = loaded.settings
    name = application_of(settings.application_id, version)

    def without(known: Versions) -> Versions:
        return known.retired(version, process_clock().now_ms(), is_forced=force)

    rest = without(known_versions(settings, timeout))  # refuses before anything is asked
    _refuse_while_read(settings, name, rest, timeout)
    if not yes:
        typer.confirm(f"Delete version {version} of {settings.application_id}?", abort=True, err=True)
    state = ClusterState.load(run_dir)
    is_local = state is not None and state.application.application_id == settings.application_id
    if state is not None and is_local:
        LocalCluster(run_dir, state.application, as_saved=True).remove(version)
    checkpoints = checkpoint_dir or (run_dir / "checkpoints" if is_local else Path())
    with failures_told(settings.brokers):
        plan = plan_reset(settings.brokers, name, str(checkpoints), timeout)
        change(settings, without, timeout, router_named(router))
        carry_out(settings.brokers, plan, timeout)
        # The first one's control topics have the record of versions.
        control = control_topic_names(name) if version != FIRST else ()
        delete_topics(clients.admin(settings.brokers, f"{name}-retire"), [*control, dead_letters_topic(name)])
    note(f"version {version} is deleted: {len(plan.topics)} changelogs, checkpoints of {len(plan.queries)} queries")


def _refuse_while_read(settings: ApplicationIdSettings, name: str, rest: Versions, timeout: float) -> None:
    """Refuse to delete topics from which another version is built.

    Raises:
        VersionRefused: a version that stays reads one.
        LookupFailure: Kafka can't be reached.

    """
    with failures_told(settings.brokers):
        for other in rest.all:
            other_name = application_of(settings.application_id, other)
            if read := topics_read_by(settings.brokers, name, other_name, timeout):
                raise VersionRefused(f"version {other} reads {', '.join(read)}: it needs the version that writes that")
