"""The command `statehouse attach`."""

from __future__ import annotations

from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from statehouse.cli.declared import takes_settings
from statehouse.cli.output import OutputFormat, OutputOption
from statehouse.errors import ConfigurationError
from statehouse.observability import logs
from statehouse.settings import AttachSettings, LoadedSettings

_STATE: Final = "State"
_ENTRIES: Final = "Entries"
# What only queries of our own have.
_NOT_OURS: Final = ("checkpoint_dir", "commit_interval_ms", "max_offsets")
_DEFAULTS: Final = {"operator": 0, "state_store": "default", "on_error": "dead-letter", "value_serde": "json"}


def _option(
    panel: str, text: str, *names: str, metavar: str | None = None, least: int | None = None
) -> typer.models.OptionInfo:
    """Return an option that nothing is shown for if it isn't given."""
    made: typer.models.OptionInfo = typer.Option(
        *names, help=text, metavar=metavar, min=least, show_default=False, rich_help_panel=panel
    )
    return made


@takes_settings(AttachSettings, but=_NOT_OURS)
def _attach(
    loaded: LoadedSettings[AttachSettings],
    checkpoint: Annotated[str | None, _option(_STATE, "The job's checkpointLocation.", metavar="DIR")] = None,
    store: Annotated[str | None, _option(_ENTRIES, "Name of the store.")] = None,
    states: Annotated[
        Path | None,
        _option(_STATE, "A file with several states, instead of the options of one (docs/attach.md).", metavar="FILE"),
    ] = None,
    operator: Annotated[int, typer.Option(min=0, help="Id of the operator.", rich_help_panel=_STATE)] = 0,
    state_store: Annotated[
        str, typer.Option(help="Which of the operator's state stores: joins have several.", rich_help_panel=_STATE)
    ] = "default",
    state_variable: Annotated[str | None, _option(_STATE, "Which variable of transformWithState.")] = None,
    poll_interval_ms: Annotated[
        int, typer.Option(min=10, help="How often to look for a new batch.", rich_help_panel=_STATE)
    ] = 200,
    key: Annotated[
        str | None,
        _option(_ENTRIES, "The key, over the key's columns.  [default: the column, or all as JSON]", metavar="SQL"),
    ] = None,
    value: Annotated[
        list[str] | None,
        _option(
            _ENTRIES,
            "A field of the value, over the columns of value and key; may be repeated.  [default: the columns]",
            metavar="NAME=SQL",
        ),
    ] = None,
    aggregate: Annotated[
        list[str] | None,
        _option(_ENTRIES, "An aggregate of the job, as the job has it; all of them, in its order.", metavar="NAME=SQL"),
    ] = None,
    input_: Annotated[
        str,
        _option(
            _ENTRIES, "Types of what the aggregates read, as in 'amount DECIMAL(6,2)'.", "--input", metavar="COLUMNS"
        ),
    ] = "",
    columns: Annotated[
        list[str] | None,
        _option(_ENTRIES, "The columns of the value that leave the state, with commas.  [default: all]"),
    ] = None,
    hide: Annotated[list[str] | None, _option(_ENTRIES, "Columns of the value that don't.")] = None,
    as_: Annotated[
        str | None,
        _option(
            _ENTRIES,
            "Serve a key's window, or session, as a window or session store.",
            "--as",
            metavar="window|session",
        ),
    ] = None,
    on_error: Annotated[
        str,
        typer.Option(
            metavar="dead-letter|null",
            help="What an expression that can't be computed costs: the entry, or the field.",
            rich_help_panel=_ENTRIES,
        ),
    ] = "dead-letter",
    key_serde: Annotated[str | None, _option(_ENTRIES, "Serde of keys.  [default: by the type]")] = None,
    value_serde: Annotated[str, typer.Option(help="Serde of values.", rich_help_panel=_ENTRIES)] = "json",
    partitions: Annotated[
        int | None, _option(_ENTRIES, "Partitions of a new changelog.  [default: the state's, at most 8]", least=1)
    ] = None,
) -> None:
    """Serve the state of streaming queries that other programs run, by following their checkpoints.

    These programs aren't changed, and nothing is written to their checkpoints. The other settings are a processor's.
    """
    # Spark is slow to import.
    from processor.attach.attach_processor import attach_processor  # noqa: PLC0415
    from processor.attach.attachment import Attachment  # noqa: PLC0415
    from processor.attach.states_file import state_of, states_of_file  # noqa: PLC0415
    from processor.run.command import run_until_asked  # noqa: PLC0415

    settings = loaded.settings
    logs.configure(settings.log_level)
    one: dict[str, Any] = {
        "checkpoint": checkpoint,
        "store": store,
        "operator": operator,
        "state_store": state_store,
        "state_variable": state_variable,
        "key": key,
        "values": value,
        "key_serde": key_serde,
        "value_serde": value_serde,
        "aggregates": aggregate,
        "input": input_,
        "columns": columns,
        "hide": hide,
        "as": as_,
        "on_error": on_error,
        "partitions": partitions,
    }
    if states is not None:
        if any((given or name in _DEFAULTS) and given != _DEFAULTS.get(name) for name, given in one.items()):
            raise ConfigurationError("--states names the states, with all their options: leave those of one state out")
        found = states_of_file(states)
    elif checkpoint is None or store is None:
        raise ConfigurationError(
            "name the state: --checkpoint and --store, or --states FILE; --list DIR shows which there are"
        )
    else:
        one |= {"values": named(value or [], "--value"), "aggregates": named(aggregate or [], "--aggregate")}
        one |= {"columns": separated(columns or []), "hide": separated(hide or [])}
        found = [state_of(one)]
    attachment = Attachment(settings.application_id, found, poll_interval_ms)
    raise typer.Exit(run_until_asked(lambda: attach_processor(attachment, settings)))


_ListOption = Annotated[
    str | None, _option(_STATE, "Show the states that a checkpoint has, and end.", "--list", metavar="DIR")
]


@wraps(_attach)
def attach(list_: str | None, output: OutputFormat, **arguments: Any) -> None:  # noqa: ANN401 - as the options are
    """Serve states, or list those that there are."""
    if list_ is None:
        _attach(**arguments)
        return
    from processor.attach.states_table import show  # noqa: PLC0415 - Spark is slow to import

    show(list_, named(arguments.get("spark_conf") or [], "the configuration of Spark,"), output)


# To list needs none of the settings, so it comes before they are loaded.
attach.__signature__ = Signature(  # type: ignore[attr-defined] # what typer reads
    [
        Parameter("list_", Parameter.KEYWORD_ONLY, default=None, annotation=_ListOption),
        *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in signature(_attach).parameters.values()),
        Parameter("output", Parameter.KEYWORD_ONLY, default=OutputFormat.TABLE, annotation=OutputOption),
    ]
)
attach.__annotations__ = {each.name: each.annotation for each in signature(attach).parameters.values()}


def named(given: list[str], option: str) -> dict[str, str]:
    """Return name -> expression.

    Raises:
        ConfigurationError: one is not NAME=SQL, or a name comes twice.

    """
    made: dict[str, str] = {}
    for text in given:
        name, equals, expression = (part.strip() for part in text.partition("="))
        if not (name and equals and expression):
            raise ConfigurationError(f"{option} {text!r} must be NAME=SQL, as in total=count")
        if name in made:
            raise ConfigurationError(f"{option} gives {name!r} twice: give one of them another name")
        made[name] = expression
    return made


def separated(given: list[str]) -> tuple[str, ...]:
    """Return names that are given with commas, or one by one."""
    return tuple(name for text in given for each in text.split(",") if (name := each.strip()))
