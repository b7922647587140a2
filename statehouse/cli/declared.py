"""Command options made from the declarations of settings: these give flag, help, default and bounds."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_type_hints

import typer

from statehouse.cli.exits import run_reporting
from statehouse.settings import CONFIG_ENV, DeclaredSettings, Setting, load_with_sources

Settings = TypeVar("Settings", bound=DeclaredSettings)


def _escaped(text: str) -> str:
    """Return a text that Rich shows as it is; to Rich, words in brackets are styles. Servers import no Rich for it."""
    return text.replace("[", r"\[")


_FILE: Final = "config_file"
_FileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help=f"TOML file to take settings from.  {_escaped(f'[default: the one that {CONFIG_ENV} names]')}",
        show_default=False,
    ),
]


def takes_settings(
    cls: type[Settings],
    *only: str,
    but: Collection[str] = (),
    fallback: Callable[[], Mapping[str, str]] = dict,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first argument is `LoadedSettings` of this class.

    In addition to the function's own options, the command has one for each setting, or only for those in `only`, and
    none for those in `but`. `fallback()` has values for some of them, by name; they count if no flag, variable or file
    gives any of these.
    """

    def make(function: Callable[..., None]) -> Callable[..., None]:
        declared = [
            each for each in cls.declared().values() if (not only or each.name in only) and each.name not in but
        ]

        @functools.wraps(function)
        def command(**arguments: Any) -> None:  # noqa: ANN401 - of the types that the options have
            flags = {each.name: arguments.pop(each.name) for each in declared}
            file = arguments.pop(_FILE)
            found = {} if file is not None or os.environ.get(CONFIG_ENV) else fallback()
            if not any(
                flags[each.name] is not None or each.variable in os.environ for each in declared if each.name in found
            ):
                flags |= found
            function(load_with_sources(cls, flags, file), **arguments)

        hints = get_type_hints(function, include_extras=True)
        own = [each.replace(annotation=hints[each.name]) for each in list(signature(function).parameters.values())[1:]]
        options = [_option(each) for each in declared] + [_parameter(_FILE, _FileOption)]
        command.__signature__ = Signature(own + options)  # type: ignore[attr-defined] # what typer reads
        command.__annotations__ = {each.name: each.annotation for each in own + options}
        return command

    return make


def run_alone(command: Callable[..., None]) -> None:
    """Run a command that is a program of its own (`python -m ...`), with the exit codes of `statehouse`."""
    sys.exit(run_reporting(lambda: typer.run(command)))


def _option(setting: Setting) -> Parameter:
    """Return a setting's option. Its value stays text, like a variable's: loading checks it."""
    flag, kind = setting.flag, str | None
    if setting.is_switch:
        flag, kind = f"{flag}/--no-{flag.removeprefix('--')}", bool | None  # type: ignore[assignment]
    elif setting.is_mapping:
        kind = list[str] | None  # type: ignore[assignment]
    option = typer.Option(
        flag,
        metavar=None if setting.is_switch else setting.kind,
        help=f"{_escaped(setting.meaning)}  {_escaped(f'[{_facts(setting)}]')}",
        show_default=False,
        rich_help_panel=setting.group.value,
    )
    return _parameter(setting.name, Annotated[kind, option])


def _facts(setting: Setting) -> str:
    """Return a setting's default and bounds, and its variable if the flag has another name."""
    facts = [setting.default if setting.default == "required" else f"default: {setting.default}", setting.bounds]
    if setting.flag != f"--{setting.name.replace('_', '-')}":
        facts.append(setting.variable)
    return "; ".join(fact for fact in facts if fact)


def _parameter(name: str, annotation: Any) -> Parameter:  # noqa: ANN401 - an annotated type
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
