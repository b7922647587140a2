"""The commands of controllers: `statehouse controller` and `assign`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from processor.ownership.declared_settings import declared_settings, ownership_settings, settings_of_record
from processor.ownership.machine.takeover import ControllerRecord
from processor.ownership.preview import added_nodes, preview, show
from processor.ownership.process import run_standby
from processor.ownership.settings import OwnershipSettings
from processor.ownership.topics.observed import observe
from statehouse.cli.declared import takes_settings
from statehouse.cli.output import OutputFormat, OutputOption
from statehouse.observability import logs
from statehouse.settings import (
    KAFKA_SETTINGS,
    AssignPlanSettings,
    ControllerSettings,
    LoadedSettings,
    PlanningSettings,
    SettingSource,
)


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


_PLANNED_BY: Final = (
    "num_standby_replicas",
    "acceptable_recovery_lag",
    "max_warmup_replicas",
    "heartbeat_interval_ms",
    "session_timeout_ms",
)


@takes_settings(AssignPlanSettings, "application_id", *KAFKA_SETTINGS, *_PLANNED_BY)
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
        if acting is None:
            return ownership_settings(PlanningSettings(**given))
        return settings_of_record(declared_settings(acting.settings) | given)

    fleet = observe(settings.brokers, settings.application_id, planned_by, timeout)
    show(preview(fleet, joining, remove or []), output)
