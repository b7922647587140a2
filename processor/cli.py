"""The commands that run an application and reset it: `statehouse process` and `reset`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from processor.ownership.static import run_static
from processor.run.reset import ResetPlan, carry_out, plan_reset
from processor.settings import ProcessorSettings
from statehouse.cli import output as out
from statehouse.cli.declared import run_alone, takes_settings
from statehouse.cli.exits import ExitCode
from statehouse.cli.output import OutputFormat, OutputOption
from statehouse.cli.package_check import ensure_none_in, import_from_here
from statehouse.kafka.access import check_login, failures_told
from statehouse.local.application_file import ApplicationFile
from statehouse.observability import logs
from statehouse.settings import (
    KAFKA_SETTINGS,
    LoadedSettings,
    RegistrySettings,
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
    import_from_here()
    logs.configure(settings.log_level)
    if static is not None:
        if settings.controller == "none":
            raise typer.BadParameter("a static topology is served by its controller alone: leave --controller none out")
        raise typer.Exit(run_static(static, settings))
    # Spark is slow to import, and a static topology doesn't need it.
    from processor.run.command import run  # noqa: PLC0415

    raise typer.Exit(run(app or "", settings))


@takes_settings(ProcessorSettings, "spark_conf", *RegistrySettings.declared())
def check(
    loaded: LoadedSettings[ProcessorSettings],
    app: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODULE]",
            help="Topology module, as in hello.topology, or the name of an installed application.  "
            r"\[default: the one of this folder's statehouse.toml]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Have Spark analyse an application's queries, without Kafka: says file, line and remedy of what can't work.

    Nothing is run and nothing written. A topology that reads schemas asks its registry. Exit code 1: it has mistakes.
    """
    logs.configure("WARNING")
    ensure_none_in(Path.cwd())
    file = ApplicationFile.of(Path.cwd())
    name = app or (file.app if file else None)
    if name is None:
        raise typer.BadParameter("name a topology's module: this folder has no statehouse.toml that does")
    # Spark is slow to import, and the list of commands doesn't need it.
    from processor.run.check import check_application  # noqa: PLC0415
    from processor.spark.mistakes import TopologyError  # noqa: PLC0415

    try:
        checked = check_application(name, loaded.settings)
    except TopologyError as error:
        out.note(f"error: {error}")
        raise typer.Exit(ExitCode.ERROR) from error
    queries, stores = (", ".join(each.name for each in named) or "none" for named in (checked.queries, checked.stores))
    print(f"{checked.application_id}: Spark can run its queries ({queries}); its stores are {stores}")


class ResetTo(StrEnum):
    """Where the application's next start begins to read its sources."""

    EARLIEST = "earliest"


@takes_settings(ProcessorSettings, *KAFKA_SETTINGS, "checkpoint_dir", "application_version")
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
    import_from_here()
    # Spark is slow to import, and the other commands don't need it.
    from processor.application.topology import Topology  # noqa: PLC0415

    topology = Topology.load(app).of_version(settings.application_version)
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
