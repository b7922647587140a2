"""`statehouse topics`: the settings of an application's topics, wanted and found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Final

import typer
from confluent_kafka.admin import AdminClient

from processor.settings import ProcessorSettings
from processor.topics.audit import PARTITIONS, Difference, TopicSetting, compare
from statehouse.cli import output as out
from statehouse.cli.declared import takes_settings
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.package_check import import_from_here
from statehouse.contract.topology import control_topic_names
from statehouse.errors import StatehouseError
from statehouse.kafka import clients
from statehouse.kafka.access import check_login, failures_told
from statehouse.kafka.topics import TopicSpec, ensure_topics, found_topics
from statehouse.observability import logs
from statehouse.settings import LoadedSettings

_SETTLES_WITHIN_S: Final = 10.0
_SETTLE_POLL_S: Final = 0.1

COLUMNS: Final[Sequence[Column[TopicSetting]]] = (
    Column("TOPIC", lambda each: each.topic),
    Column("SETTING", lambda each: each.setting),
    Column("WANTED", lambda each: each.wanted),
    Column("FOUND", lambda each: "no topic" if each.found is None else each.found),
    Column("DIFFERENCE", lambda each: "-" if each.difference is Difference.NONE else each.difference),
    Column("WHAT TO DO", lambda each: each.remedy or "-", is_wide=True),
)


class TopicsDiffer(StatehouseError):
    """Topics are not as the application wants them."""


class TopicsAction(StrEnum):
    """The actions of `statehouse topics`."""

    CHECK = "check"
    APPLY = "apply"


@takes_settings(ProcessorSettings)
def topics(
    loaded: LoadedSettings[ProcessorSettings],
    action: Annotated[
        TopicsAction,
        typer.Argument(help="check: show what differs. apply: change it where that can be.", show_default=False),
    ],
    app: Annotated[
        str, typer.Argument(help="Topology module, as in examples.leaderboard.topology.", show_default=False)
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check that changelogs, output topics and control topics are as an application wants them, or make them so.

    Takes the settings that the application's processor has, and starts Spark to see what its code declares. `check`
    changes nothing, and ends with exit code 1 if anything differs. `apply` does what the processor's next start would:
    it creates topics and changes settings. A number of partitions or replicas it can't change: it says what to do.
    """
    settings = loaded.settings
    logs.configure("WARNING")
    import_from_here()
    # Spark is slow to import, and the list of commands doesn't need it.
    from processor.application.topology import Topology  # noqa: PLC0415
    from processor.topics.declared import declared_topics  # noqa: PLC0415

    topology = Topology.load(app).of_version(settings.application_version)
    client_id = f"{topology.application_id}-topics"
    check_login(settings.brokers, client_id)
    with failures_told(settings.brokers):
        admin = clients.admin(settings.brokers, client_id)
        specs = declared_topics(topology, admin, settings)
        control = frozenset(control_topic_names(topology.application_id))
        audit = _apply if action is TopicsAction.APPLY else _found
        compared = audit(admin, specs, control)
    differing = [each for each in compared if each.difference is not Difference.NONE]
    out.show(
        output,
        compared,
        dict.fromkeys(each.topic for each in differing),
        lambda is_wide: out.print_columns(COLUMNS, compared, is_wide=is_wide),
    )
    if differing:
        raise TopicsDiffer("\n  ".join([f"{len(differing)} settings of topics differ:", *map(_said, differing)]))


def _found(admin: AdminClient, specs: Sequence[TopicSpec], control: frozenset[str]) -> list[TopicSetting]:
    return compare(specs, found_topics(admin, [spec.name for spec in specs]), control)


def _apply(admin: AdminClient, specs: Sequence[TopicSpec], control: frozenset[str]) -> list[TopicSetting]:
    """Change what can be changed, of topics with another number of partitions too; return what there is then."""
    before = _found(admin, specs, control)
    for each in before:
        if each.difference in {Difference.MISSING, Difference.CHANGEABLE}:
            was = "" if each.found is None else f", was {each.found or 'nothing'}"
            out.note(f"{each.topic}: {each.setting}={each.wanted}{was}")
    counts = {each.topic: int(each.found) for each in before if each.setting == PARTITIONS and each.found is not None}
    ensure_topics(admin, [replace(spec, partitions=counts.get(spec.name, spec.partitions)) for spec in specs])
    # A broker may not know yet what the controller has decided.
    deadline = time.monotonic() + _SETTLES_WITHIN_S
    while _can_change(after := _found(admin, specs, control)) and time.monotonic() < deadline:
        time.sleep(_SETTLE_POLL_S)
    return after


def _can_change(compared: Sequence[TopicSetting]) -> bool:
    return any(each.difference in {Difference.MISSING, Difference.CHANGEABLE} for each in compared)


def _said(differing: TopicSetting) -> str:
    name = f"{differing.topic}: {differing.setting}"
    if differing.found is None:
        return f"{name} is to be {differing.wanted}, and the topic does not exist: `statehouse topics apply` creates it"
    remedy = differing.remedy or "`statehouse topics apply` changes it"
    return f"{name} is {differing.found or 'not set'}, and is to be {differing.wanted}: {remedy}"
