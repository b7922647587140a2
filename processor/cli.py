"""The processor's commands: `statehouse process`, `controller`, `assign` and `reset`."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from processor.controller_process import run_standby
from processor.ownership.controller_record import declared_settings
from processor.ownership.observed import observe
from processor.ownership.preview import added_nodes, preview, show
from processor.ownership.settings import OwnershipSettings
from processor.ownership.takeover import ControllerRecord
from processor.reset import ResetPlan, carry_out, plan_reset
from processor.settings import ProcessorSettings, ownership_settings
from processor.static import run_static
from statehouse.cli import output as out
from statehouse.cli.declared import run_alone, takes_settings
from statehouse.cli.output import OutputFormat, OutputOption
from statehouse.kafka.access import check_login, failures_told
from statehouse.observability import logs
from statehouse.settings import (
    AssignPlanSettings,
    ControllerSettings,
    KafkaSecuritySettings,
    LoadedSettings,
    SettingSource,
)


@takes_settings(ProcessorSettings)
def process(
    loaded: LoadedSettings[ProcessorSettings],
    app: Annotated[str | None, typer.Argument(help="Topology module, as in examples.leaderboard.topology.")] = None,
    static: Annotated[
        Path | None,
        typer.Option(help="Serve the changelogs that this TOML file names instead, without Spark."),
    ] = None,
) -> None:
    """Run an application: read its topics, keep its state, publish its stores.

    Every setting can also be given as STATEHOUSE_<NAME> or in a TOML file. `statehouse config show process` takes the
    same options and prints the resulting settings.
    """
    settings = loaded.settings
    if (app is None) == (static is None):
        raise typer.BadParameter("give a topology module or --static FILE, one of the two")
    sys.path.insert(0, str(Path.cwd()))
    logs.configure(settings.log_level)
    if static is not None:
        if settings.controller == "none":
            raise typer.BadParameter("a static topology is served by its controller alone: leave --controller none out")
        raise typer.Exit(run_static(static, settings))
    # Spark is slow to import, and a static topology doesn't need it.
    from processor.runner import run  # noqa: PLC0415

    raise typer.Exit(run(app or "", settings))


@takes_settings(ControllerSettings)
def controller(
    loaded: LoadedSettings[ControllerSettings],
    standby: Annotated[bool, typer.Option("--standby", help="Stand by; the only way that this command runs.")] = False,
) -> None:
    """Stand by as ownership controller: assign tasks to nodes when the processor can't.

    It takes over one session timeout after the acting controller's last sign of life, with the stores of the last
    assignment and that controller's settings. Any number may stand by. A processor that starts takes over again.
    """
    if not standby:
        raise typer.BadParameter("give --standby: the controller that acts first is the processor's own")
    logs.configure(loaded.settings.log_level)
    raise typer.Exit(run_standby(loaded.settings))


class AssignAction(StrEnum):
    """The actions of `statehouse assign`."""

    PLAN = "plan"


_KAFKA: Final = ("bootstrap", *KafkaSecuritySettings.declared())
_PLANNED_BY: Final = (
    "num_standby_replicas",
    "acceptable_recovery_lag",
    "max_warmup_replicas",
    "heartbeat_interval_ms",
    "session_timeout_ms",
)


@takes_settings(AssignPlanSettings, "application_id", *_KAFKA, *_PLANNED_BY)
def assign(
    loaded: LoadedSettings[AssignPlanSettings],
    action: Annotated[AssignAction, typer.Argument(help="plan: show the moves.", show_default=False)],  # noqa: ARG001 - there is only one so far
    add: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:capacity=N,rack=R]", help="A node that joins, empty; may be repeated."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A live node that is drained; may be repeated.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait until everything was read from Kafka.")
    ] = 10.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the moves that the controller would make if nodes joined or left, and why; changes nothing.

    Each step is an epoch. The plan assumes that every node finishes its restores between steps. It goes by the settings
    of the acting controller; those that are given here, as options, as STATEHOUSE_<NAME> or in a TOML file, come first.
    """
    joining = added_nodes(add or [])
    logs.configure("WARNING")
    settings = loaded.settings
    given = {name: getattr(settings, name) for name in _PLANNED_BY if loaded.sources[name] != SettingSource.DEFAULT}

    def planned_by(acting: ControllerRecord | None) -> OwnershipSettings:
        known = {} if acting is None else declared_settings(acting.settings)
        return ownership_settings(ProcessorSettings(**(known | given)))

    fleet = observe(settings.brokers, settings.application_id, planned_by, timeout)
    show(preview(fleet, joining, remove or [], fleet.settings.planner), output)


class ResetTo(StrEnum):
    """Where the application's next start begins to read its sources."""

    EARLIEST = "earliest"


@takes_settings(ProcessorSettings, *_KAFKA, "checkpoint_dir")
def reset(
    loaded: LoadedSettings[ProcessorSettings],
    app: Annotated[
        str, typer.Argument(help="Topology module, as in examples.leaderboard.topology.", show_default=False)
    ],
    to: Annotated[ResetTo, typer.Option(help="Where the next start begins to read the sources.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")] = False,
    timeout: Annotated[
        float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait until everything was read from Kafka.")
    ] = 10.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete an application's checkpoints and changelogs, so that it starts from nothing; asks first.

    Stop the processor first. Nodes and routers may keep running: a node wipes a store when its changelog is replaced.
    Dead letters and output topics are kept; the application then writes its output records a second time.
    """
    settings = loaded.settings
    logs.configure("WARNING")
    sys.path.insert(0, str(Path.cwd()))
    # Spark is slow to import, and the other commands don't need it.
    from processor.runner import Topology  # noqa: PLC0415

    topology = Topology.load(app)
    check_login(settings.brokers, f"{topology.application_id}-reset", timeout)
    with failures_told(settings.brokers):
        plan = plan_reset(settings.brokers, topology.application_id, settings.checkpoint_dir, timeout)
        _show(plan, output)
        if dry_run or plan.is_empty:
            return
        if not yes:
            typer.confirm("Delete all of this?", abort=True, err=True)
        carry_out(settings.brokers, plan, timeout)
    out.note(f"{plan.application_id} is reset: its next start reads its sources from {to}")


def _show(plan: ResetPlan, output: OutputFormat) -> None:
    document = {
        "application": plan.application_id,
        "checkpoints": str(plan.checkpoints),
        "queries": plan.queries,
        "topics": plan.topics,
        "commit_records": plan.committed,
        "kept": [plan.kept],
    }
    names = [*(str(plan.checkpoints / query) for query in plan.queries), *plan.topics]
    out.show(output, document, names, lambda _is_wide: _print_reset(plan))


def _print_reset(plan: ResetPlan) -> None:
    if plan.is_empty:
        out.note(f"{plan.application_id} has nothing to delete")
        return
    rows: list[tuple[object, ...]] = [("checkpoint", str(plan.checkpoints / query), "-") for query in plan.queries]
    rows += [("topic", topic, f"{held} offsets") for topic, held in plan.topics.items()]
    rows += [("commit record", store, "-") for store in plan.committed]
    out.print_table(["TO DELETE", "NAME", "HOLDS"], rows, title=f"Reset of {plan.application_id}")
    out.note(f"kept: {plan.kept}, the sources, and topics that aren't stores'")


def main() -> None:
    """Run these commands on their own: `python -m processor.cli`."""
    run_alone(process)


if __name__ == "__main__":
    main()
