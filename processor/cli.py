"""The processor's commands: `statehouse process`, `statehouse assign` and `statehouse reset`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaException

from processor.ownership.model import PlannerSettings
from processor.ownership.observed import observe
from processor.ownership.preview import added_nodes, preview, show
from processor.ownership.settings import OwnershipSettings
from processor.reset import ResetPlan, carry_out, plan_reset
from processor.restarts import RestartPolicy
from processor.settings import ProcessorSettings
from processor.static import run_static
from statehouse.cli import output as out
from statehouse.cli.options import OutputOption
from statehouse.cli.output import Output
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.observability import logs
from statehouse.settings import ProcessSettings, load


def process(
    app: Annotated[str | None, typer.Argument(help="Topology module, as in examples.leaderboard.topology.")] = None,
    static: Annotated[
        Path | None,
        typer.Option(help="Serve the changelogs that this TOML file names instead, without Spark."),
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="Directory of Spark's checkpoints, on any Hadoop file system.")
    ] = None,
    accept_lost_checkpoint: Annotated[
        bool | None,
        typer.Option("--accept-lost-checkpoint", help="Begin anew over changelogs whose checkpoint is gone."),
    ] = None,
    commit_interval_ms: Annotated[
        int | None, typer.Option(help="Time between batches; 0: one after the other.")
    ] = None,
    max_offsets: Annotated[int | None, typer.Option(help="Events a batch reads at most of each stream.")] = None,
    shuffle_partitions: Annotated[
        int | None, typer.Option(help="Tasks of a stateful stage; fixed at the first start.")
    ] = None,
    sink_tasks: Annotated[int | None, typer.Option(help="Tasks that write a batch to Kafka.")] = None,
    spark_master: Annotated[
        str | None, typer.Option("--master", help="Spark master; default local[*], or spark-submit's.")
    ] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A Spark setting, NAME=VALUE; may be repeated.")] = None,
    replication_factor: Annotated[int | None, typer.Option(help="Of topics created; -1: the broker's default.")] = None,
    changelog_additional_retention_ms: Annotated[
        int | None, typer.Option(help="Kept in window and session changelogs beyond the store's retention.")
    ] = None,
    updates_retention_ms: Annotated[
        int | None, typer.Option(help="How long topics of ephemeral stores keep their updates.")
    ] = None,
    heartbeat_interval_ms: Annotated[
        int | None, typer.Option(help="How often nodes tell the fleet; as on the nodes.")
    ] = None,
    session_timeout_ms: Annotated[int | None, typer.Option(help="Silence after which a node is dead.")] = None,
    num_standby_replicas: Annotated[int | None, typer.Option(help="Copies of a partition besides the active.")] = None,
    flap_limit: Annotated[
        int | None, typer.Option(help="Restarts or losses of a node after which it gets nothing new for a while.")
    ] = None,
    flap_window_ms: Annotated[int | None, typer.Option(help="How long they are remembered.")] = None,
    max_query_restarts: Annotated[
        int | None, typer.Option(help="Restarts of a query that keeps dying before the process ends.")
    ] = None,
    query_restart_window_ms: Annotated[int | None, typer.Option(help="How long a query's death is remembered.")] = None,
    source_wait_ms: Annotated[int | None, typer.Option(help="Longest wait for source topics.")] = None,
    bind_host: Annotated[str | None, typer.Option(help="Address that metrics are served on.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for Prometheus; default none.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Run an application: read its topics, keep its state, publish its stores.

    Every option but --conf can also be given as STATEHOUSE_<NAME> or in the TOML file that STATEHOUSE_CONFIG names.
    """
    flags = {name: value for name, value in locals().items() if name not in {"app", "conf", "static"}}
    if (app is None) == (static is None):
        raise typer.BadParameter("give a topology module or --static FILE, one of the two")
    sys.path.insert(0, str(Path.cwd()))
    try:
        given = load(ProcessSettings, flags)
        settings = _settings(given, _pairs(conf or []))
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from error
    logs.configure(given.log_level)
    if static is not None:
        code = run_static(static, settings.bootstrap, settings.ownership, replication_factor=given.replication_factor)
        raise typer.Exit(code)
    # Spark is slow to import, and a static topology does without it.
    from processor.runner import run  # noqa: PLC0415

    raise typer.Exit(run(app or "", settings))


class AssignAction(StrEnum):
    """What `statehouse assign` does."""

    PLAN = "plan"


def assign(
    action: Annotated[AssignAction, typer.Argument(help="plan: show the moves.", show_default=False)],
    application_id: Annotated[str | None, typer.Option(help="Application whose assignment to look at.")] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:capacity=N,rack=R]", help="A node that joins, empty; may be repeated."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A live node that is drained; may be repeated.")
    ] = None,
    num_standby_replicas: Annotated[
        int | None, typer.Option(help="Copies of a partition besides the active; as the processor's.")
    ] = None,
    acceptable_recovery_lag: Annotated[
        int | None, typer.Option(help="Records within which a replica is caught up; as the processor's.")
    ] = None,
    max_warmup_replicas: Annotated[int | None, typer.Option(help="Warm-ups at once; as the processor's.")] = None,
    heartbeat_interval_ms: Annotated[
        int | None, typer.Option(help="How often nodes tell the fleet; as the processor's.")
    ] = None,
    session_timeout_ms: Annotated[
        int | None, typer.Option(help="Silence after which a node is dead; as the processor's.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for Kafka to have told all.")
    ] = 10.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what the controller would do if nodes joined or left, and why; changes nothing.

    A step is an epoch. Between steps every node is taken to restore what it was given. The settings must be the
    processor's: they aren't in any topic. Give them as options, as STATEHOUSE_<NAME>, or in the TOML file that
    STATEHOUSE_CONFIG names, as there.
    """
    flags = {name: value for name, value in locals().items() if name in ProcessSettings.model_fields}
    given = load(ProcessSettings, flags)
    if not given.application_id:
        raise ConfigurationError("application_id (--application-id, STATEHOUSE_APPLICATION_ID) is missing")
    joining = added_nodes(add or [])
    logs.configure("WARNING")
    fleet = observe(given.bootstrap, given.application_id, _ownership(given), timeout)
    show(preview(fleet, joining, remove or [], _ownership(given).planner), output)


class ResetTo(StrEnum):
    """Where the application's next start reads its sources from."""

    EARLIEST = "earliest"


def reset(
    app: Annotated[
        str, typer.Argument(help="Topology module, as in examples.leaderboard.topology.", show_default=False)
    ],
    to: Annotated[ResetTo, typer.Option(help="Where its next start reads its sources from.", show_default=False)],
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's bootstrap servers.")] = None,
    checkpoint_dir: Annotated[
        str | None, typer.Option(help="Directory of Spark's checkpoints, as the processor's.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for Kafka to have told all.")
    ] = 10.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete an application's checkpoints and changelogs, so that it begins anew; asks first.

    Stop the processor before; nodes and routers may run on: nodes wipe a store when its changelog is another one.
    Dead letters are kept, and so are topics that aren't stores': what is written to those again is there twice.
    """
    given = load(ProcessSettings, {"bootstrap": bootstrap, "checkpoint_dir": checkpoint_dir})
    logs.configure("WARNING")
    sys.path.insert(0, str(Path.cwd()))
    # Spark is slow to import, and the other commands do without it.
    from processor.runner import Topology  # noqa: PLC0415

    topology = Topology.load(app)
    try:
        plan = plan_reset(given.bootstrap, topology.application_id, _expanded(given.checkpoint_dir), timeout)
        _show(plan, output)
        if dry_run or plan.is_empty:
            return
        if not yes:
            typer.confirm("Delete all of this?", abort=True, err=True)
        carry_out(given.bootstrap, plan)
    except KafkaException as error:
        raise LookupFailure(Reason.UNREACHABLE, error.args[0].str(), {"target": given.bootstrap}) from error
    out.note(f"{plan.application_id} is reset: its next start reads its sources from {to}")


def _show(plan: ResetPlan, output: Output) -> None:
    if output is Output.JSON:
        document = {
            "application": plan.application_id,
            "checkpoints": str(plan.checkpoints),
            "queries": plan.queries,
            "topics": plan.topics,
            "commit_records": plan.committed,
            "kept": [plan.kept],
        }
        out.print_json(document)
        return
    if plan.is_empty:
        out.note(f"there is nothing of {plan.application_id} to delete")
        return
    rows: list[tuple[object, ...]] = [("checkpoint", str(plan.checkpoints / query), "-") for query in plan.queries]
    rows += [("topic", topic, f"{held} offsets") for topic, held in plan.topics.items()]
    rows += [("commit record", store, "-") for store in plan.committed]
    out.print_table(["TO DELETE", "NAME", "HOLDS"], rows, title=f"Reset of {plan.application_id}")
    out.note(f"kept: {plan.kept}, the sources, and topics that aren't stores'")


def _settings(given: ProcessSettings, spark_conf: dict[str, str]) -> ProcessorSettings:
    """Turn what was given into what the processor takes."""
    return ProcessorSettings(
        bootstrap=given.bootstrap,
        checkpoint_dir=_expanded(given.checkpoint_dir),
        accept_lost_checkpoint=given.accept_lost_checkpoint,
        commit_interval_s=given.commit_interval_ms / 1000,
        max_offsets_per_trigger=given.max_offsets,
        shuffle_partitions=given.shuffle_partitions,
        sink_tasks=given.sink_tasks,
        master=given.spark_master,
        spark_conf=spark_conf,
        replication_factor=given.replication_factor,
        changelog_additional_retention_ms=given.changelog_additional_retention_ms,
        updates_retention_ms=given.updates_retention_ms,
        ownership=_ownership(given),
        restarts=RestartPolicy(
            max_restarts=given.max_query_restarts,
            window_s=given.query_restart_window_ms / 1000,
            backoff_s=given.query_restart_backoff_ms / 1000,
            backoff_max_s=given.query_restart_backoff_max_ms / 1000,
        ),
        source_wait_s=given.source_wait_ms / 1000,
        bind_host=given.bind_host,
        metrics_port=given.metrics_port,
    )


def _ownership(given: ProcessSettings) -> OwnershipSettings:
    return OwnershipSettings(
        heartbeat_interval_s=given.heartbeat_interval_ms / 1000,
        session_timeout_s=given.session_timeout_ms / 1000,
        initial_rebalance_delay_s=given.initial_rebalance_delay_ms / 1000,
        handover_linger_s=None if given.handover_linger_ms is None else given.handover_linger_ms / 1000,
        flap_limit=given.flap_limit,
        flap_window_s=given.flap_window_ms / 1000,
        planner=PlannerSettings(
            num_standby_replicas=given.num_standby_replicas,
            acceptable_recovery_lag=given.acceptable_recovery_lag,
            max_warmup_replicas=given.max_warmup_replicas,
        ),
    )


def _expanded(directory: str) -> str:
    """Resolve a leading ~ of a local path; URIs of other file systems are left alone."""
    return str(Path(directory).expanduser()) if directory.startswith("~") else directory


def _pairs(settings: list[str]) -> dict[str, str]:
    wrong = [setting for setting in settings if "=" not in setting]
    if wrong:
        raise ConfigurationError(f"--conf {wrong[0]!r} is not NAME=VALUE")
    return dict(setting.split("=", 1) for setting in settings)


def main() -> None:
    """Run the command by itself: `python -m processor.cli`."""
    typer.run(process)


if __name__ == "__main__":
    main()
