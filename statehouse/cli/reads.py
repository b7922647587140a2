"""What reads have in common: keys, which may be given as bytes, and bounds on freshness."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from statehouse.client import Freshness, KeyColumns, KeyLike
from statehouse.client.answers import AnyKey
from statehouse.contract.positions import Token, token_of_texts
from statehouse.keys.columns import columns_of_texts
from statehouse.serdes import BytesSerde

KeyArgument = Annotated[
    KeyLike,
    typer.Argument(help="Key, as its serde writes it: text, a number, JSON, or hex bytes.", show_default=False),
]
WatchedKeyArgument = Annotated[
    KeyLike | None,
    typer.Argument(help="Key to watch; without it, and without a prefix, all.", show_default=False),
]
WholeKeyArgument = Annotated[
    KeyLike, typer.Argument(help="Key, as its serde writes it; not by columns.", show_default=False)
]
"""Of stores whose keys never have columns."""
KeysArgument = Annotated[
    list[KeyLike],
    typer.Argument(metavar="KEY...", help="Keys, each as its serde writes it, as for get.", show_default=False),
]
PrefixOption = Annotated[KeyLike | None, typer.Option(metavar="KEY", help="Only keys with this prefix.")]
HexKeysOption = Annotated[
    bool, typer.Option("--hex-keys", help="Keys are given as their serialized bytes, in hex; also with 0x before.")
]
ActiveOnlyOption = Annotated[bool, typer.Option("--active-only", help="Only the active replica may answer.")]
MaxLagOption = Annotated[
    int | None,
    typer.Option(min=0, metavar="RECORDS", help="Largest lag the answering replica may have.", show_default=False),
]
MaxStalenessOption = Annotated[
    int | None,
    typer.Option(
        "--max-staleness-ms",
        min=0,
        metavar="MS",
        help="Longest time since the answering replica was last known to be at the end.",
        show_default=False,
    ),
]
MaxProcessorAgeOption = Annotated[
    int | None,
    typer.Option(
        "--max-processor-age-ms",
        min=0,
        metavar="MS",
        help="Longest time since the processor last reported a batch, or that it had nothing to do.",
        show_default=False,
    ),
]
MaxInputBacklogOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="RECORDS",
        help="Most records that the processor may have had yet to process when it last reported.",
        show_default=False,
    ),
]
AtLeastOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOKEN",
        help="What the answering replica must have seen, or wait for: a token, as -o json shows it, or "
        "STORE:PARTITION:POSITION. May be repeated.",
        show_default=False,
    ),
]

KeyColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key-column",
        metavar="NAME=VALUE",
        help="A column of the key, for stores that have them, instead of KEY; one for each column.",
        show_default=False,
    ),
]

_BOUNDS: Final[dict[str, tuple[Any, Any]]] = {
    "active_only": (ActiveOnlyOption, False),
    "max_lag": (MaxLagOption, None),
    "max_staleness_ms": (MaxStalenessOption, None),
    "max_processor_age_ms": (MaxProcessorAgeOption, None),
    "max_input_backlog": (MaxInputBacklogOption, None),
    "at_least": (AtLeastOption, None),
}
_HEX_KEYS: Final = "hex_keys"
_KEY, _KEY_COLUMNS = "key", "key_columns"
# No option begins with a digit, so this is a key.
_NEGATIVE: Final = re.compile(r"-([0-9].*|inf)", re.DOTALL)
# What typer reads in place of a key: it knows no type that is text or bytes.
_TYPED: Final[dict[Any, Any]] = {KeyLike: str, KeyLike | None: str | None, list[KeyLike]: list[str]}


class KeyCommand(TyperCommand):
    """A command with a key among its arguments: -2 is one, not an option. What else begins with - stands after --."""

    def make_parser(self, ctx: Any) -> Any:  # noqa: ANN401 - typer vendors click, whose types it doesn't export
        """Return the parser of the command's arguments."""
        parser = super().make_parser(ctx)
        take_option = parser._process_opts  # noqa: SLF001 - there is no other place that tells options from arguments

        def take(argument: str, state: Any) -> None:  # noqa: ANN401 - as above
            if _NEGATIVE.fullmatch(argument):
                state.largs.append(argument)
            else:
                take_option(argument, state)

        parser._process_opts = take  # type: ignore[method-assign, assignment] # noqa: SLF001 - as above
        return parser


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that several commands have: the fields of a dataclass, each declared as a command's parameter is."""


def takes_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: in the place of each parameter that is an `OptionGroup` are the group's options."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, OptionGroup)}

    @functools.wraps(function)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - of the types that the options have
        made = {
            name: group(**{each.name: arguments.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        function(**made, **arguments)

    parameters: list[Parameter] = []
    for each in signature(function).parameters.values():
        if each.name in groups:
            declared = get_type_hints(groups[each.name], include_extras=True)
            parameters += [_option(one.name, declared[one.name], one.default) for one in fields(groups[each.name])]
        else:
            parameters.append(each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def takes_bounds_and_keys(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that reads.

    In the place of its `freshness` the command has an option for each bound. If it takes keys (parameters that are
    `KeyLike`), it has --hex-keys too, with which they reach the function as bytes.
    """
    hints = get_type_hints(function, include_extras=True)
    keys = [name for name, hint in hints.items() if _is_key(hint)]
    takes_columns = hints.get(_KEY) in {KeyArgument, WatchedKeyArgument}
    needs_key = hints.get(_KEY) == KeyArgument

    @functools.wraps(function)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - of the types that the options have
        bounds = {name: arguments.pop(name) for name in _BOUNDS}
        bounds["at_least"] = token(bounds["at_least"])
        if keys and arguments.pop(_HEX_KEYS):
            arguments |= {name: _all_from_hex(name, arguments[name]) for name in keys}
        if takes_columns:
            arguments[_KEY] = _key_or_columns(arguments[_KEY], arguments.pop(_KEY_COLUMNS), needs_key=needs_key)
        function(freshness=Freshness(**bounds), **arguments)

    parameters: list[Parameter] = []
    for each in signature(function).parameters.values():
        if each.name == "freshness":
            parameters += [_option(_HEX_KEYS, HexKeysOption, False)] if keys else []
            parameters += [_option(_KEY_COLUMNS, KeyColumnsOption, None)] if takes_columns else []
            parameters += [_option(name, *declared) for name, declared in _BOUNDS.items()]
        else:
            hint = hints[each.name]
            if each.name in keys:
                typed, *extras = get_args(hint)
                hint = Annotated[(_TYPED[typed], *extras)]
                if each.name == _KEY and takes_columns:
                    hint, each = Annotated[(str | None, *extras)], each.replace(default=None)  # noqa: PLW2901 - may be left out
            parameters.append(each.replace(annotation=hint, kind=Parameter.KEYWORD_ONLY))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _key_or_columns(key: KeyLike | None, columns: list[str] | None, *, needs_key: bool) -> AnyKey | None:
    """Return the key, given whole or by its columns; None if there is none and the command needs none.

    Raises:
        typer.BadParameter: it is given in both ways, or in neither and the command needs it.

    """
    if columns and key is not None:
        raise typer.BadParameter("give KEY or its columns, not both", param_hint="--key-column")
    if columns:
        return KeyColumns(columns_of_texts(columns))
    if key is None and needs_key:
        raise typer.BadParameter("give the key, or its columns by --key-column NAME=VALUE", param_hint="KEY")
    return key


def _is_key(hint: Any) -> bool:  # noqa: ANN401 - an annotated type
    return bool(get_args(hint)) and get_args(hint)[0] in _TYPED


def _option(name: str, annotation: Any, default: Any) -> Parameter:  # noqa: ANN401 - an annotated type
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _all_from_hex(name: str, given: str | list[str] | None) -> bytes | list[bytes | None] | None:
    """Read one key that is given in hex, or several."""
    return [_from_hex("key", each) for each in given] if isinstance(given, list) else _from_hex(name, given)


def _from_hex(name: str, given: str | None) -> bytes | None:
    """Read a key that is given in hex.

    Raises:
        typer.BadParameter: the text is no hex.

    """
    if given is None:
        return None
    try:
        return BytesSerde().parse(given.removeprefix("0x"))
    except ValueError:
        hint = {"key": "KEY", "from_key": "--from", "to_key": "--to"}.get(name, f"--{name}")
        message = f"{given!r} is not bytes in hex: two digits for each, without blanks"
        raise typer.BadParameter(message, param_hint=hint) from None


def token(given: list[str] | None) -> Token | None:
    """Read the values of `--at-least`; for each store partition the largest position counts.

    Raises:
        typer.BadParameter: a value is neither a token nor a position.

    """
    if not given:
        return None
    try:
        return token_of_texts(given)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--at-least") from None
