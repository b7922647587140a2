"""The command `statehouse attach`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from statehouse.cli.declared import takes_settings
from statehouse.errors import ConfigurationError
from statehouse.observability import logs
from statehouse.settings import AttachSettings, LoadedSettings

_STATE: Final = "State"
_ENTRIES: Final = "Entries"
# What only queries of our own have.
_NOT_OURS: Final = ("checkpoint_dir", "commit_interval_ms", "max_batch_ms", "max_offsets")


@takes_settings(AttachSettings, but=_NOT_OURS)
def attach(
    loaded: LoadedSettings[AttachSettings],
    checkpoint: Annotated[
        str,
        typer.Option(metavar="DIR", help="The job's checkpointLocation.", show_default=False, rich_help_panel=_STATE),
    ],
    store: Annotated[str, typer.Option(help="Name of the store.", show_default=False, rich_help_panel=_ENTRIES)],
    operator: Annotated[int, typer.Option(min=0, help="Id of the operator.", rich_help_panel=_STATE)] = 0,
    state_store: Annotated[
        str, typer.Option(help="Which of the operator's state stores: joins have several.", rich_help_panel=_STATE)
    ] = "default",
    state_variable: Annotated[
        str | None, typer.Option(help="Which variable of transformWithState.", rich_help_panel=_STATE)
    ] = None,
    poll_interval_ms: Annotated[
        int, typer.Option(min=10, help="How often to look for a new batch.", rich_help_panel=_STATE)
    ] = 200,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            help="The key, over the key's columns.  [default: the column, or all as JSON]",
            show_default=False,
            rich_help_panel=_ENTRIES,
        ),
    ] = None,
    value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SQL",
            help="A field of the value, over the columns of value and key; may be repeated.  [default: the columns]",
            show_default=False,
            rich_help_panel=_ENTRIES,
        ),
    ] = None,
    key_serde: Annotated[
        str | None,
        typer.Option(help="Serde of keys.  [default: by the type]", show_default=False, rich_help_panel=_ENTRIES),
    ] = None,
    value_serde: Annotated[str, typer.Option(help="Serde of values.", rich_help_panel=_ENTRIES)] = "json",
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Partitions of a new changelog.  [default: the state's, at most 8]",
            show_default=False,
            rich_help_panel=_ENTRIES,
        ),
    ] = None,
) -> None:
    """Serve the state of a streaming query that another program runs, by following its checkpoint.

    That program isn't changed, and nothing is written to its checkpoint. The other settings are a processor's.
    """
    logs.configure(loaded.settings.log_level)
    # Spark is slow to import.
    from processor.attach.attach_processor import Attachment, AttachProcessor  # noqa: PLC0415
    from processor.attach.mapping import EntryMapping  # noqa: PLC0415
    from processor.attach.operators import StateChoice  # noqa: PLC0415
    from processor.runner import run_until_asked  # noqa: PLC0415

    attachment = Attachment(
        loaded.settings.application_id,
        checkpoint,
        store,
        StateChoice(operator, state_store, state_variable),
        EntryMapping(key, values_of(value or []), key_serde, value_serde),
        partitions,
        poll_interval_ms,
    )
    raise typer.Exit(run_until_asked(lambda: AttachProcessor(attachment, loaded.settings)))


def values_of(given: list[str]) -> dict[str, str]:
    """Return name -> expression.

    Raises:
        ConfigurationError: one is not NAME=SQL, or a name comes twice.

    """
    made: dict[str, str] = {}
    for text in given:
        name, equals, expression = (part.strip() for part in text.partition("="))
        if not (name and equals and expression):
            raise ConfigurationError(f"--value {text!r} must be NAME=SQL, as in total=count")
        if name in made:
            raise ConfigurationError(f"--value gives {name!r} twice: give one of them another name")
        made[name] = expression
    return made
