"""What commands have in common that ask a router: groups of options, keys, and bounds on freshness."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from statehouse.cli.addresses import RouterAddress, router_of
from statehouse.cli.options import ROUTER_OPTIONS, SOME_ROUTER, TimeoutOption, option
from statehouse.cli.output import OutputFormat, OutputOption, ValueOutputOption
from statehouse.client import Client, Freshness, KeyColumns, KeyLike
from statehouse.client.answers import AnyKey
from statehouse.contract.moments import MomentBound, bound_of_texts
from statehouse.contract.positions import Token, token_of_texts
from statehouse.errors import LookupFailure, Reason
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
    typer.Argument(metavar="KEY", help="Keys, each as its serde writes it, as for get.", show_default=False),
]
KeysOrColumnsArgument = Annotated[
    list[KeyLike],
    typer.Argument(
        metavar="KEY",
        help="Key, or several, as its serde writes it: text, a number, JSON, or hex bytes.",
        show_default=False,
    ),
]
PrefixOption = Annotated[KeyLike | None, typer.Option(metavar="KEY", help="Only keys with this prefix.")]


def _bound(name: str, unit: str, meaning: str) -> Parameter:
    return option(name, Annotated[int | None, typer.Option(min=0, metavar=unit, help=meaning, show_default=False)])


def _moment(name: str, value: str, meaning: str) -> Parameter:
    return option(name, Annotated[str | None, typer.Option(metavar=value, help=meaning, show_default=False)])


_BOUNDS: Final = (
    option(
        "active_only", Annotated[bool, typer.Option("--active-only", help="Only the active replica may answer.")], False
    ),
    _bound("max_lag", "RECORDS", "Largest lag the answering replica may have."),
    _bound("max_staleness_ms", "MS", "Longest time since the answering replica was last known to be at the end."),
    _bound(
        "max_processor_age_ms",
        "MS",
        "Longest time since the processor last reported a batch, or that it had nothing to do.",
    ),
    _bound(
        "max_input_backlog",
        "RECORDS",
        "Most records that the processor may have had yet to process when it last reported.",
    ),
    _bound("max_value_age_ms", "MS", "Longest time since a value's record; an older value is refused."),
    option(
        "at_least",
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="TOKEN",
                help="What the answering replica must have seen, or wait for: a token, as -o json shows it, or "
                "STORE:PARTITION:POSITION. May be repeated.",
                show_default=False,
            ),
        ],
    ),
    _moment(
        "moment",
        "newest|TOKEN",
        "All that is read is of one batch of the store's query: the newest, or an earlier answer's, as -o json shows "
        "it.",
    ),
    _moment("moment_at_least", "TOKEN", "As --moment newest, but no batch before this one."),
)
_TOKENS: Final = frozenset({"at_least", "moment", "moment_at_least"})
_HEX_KEYS: Final = option(
    "hex_keys",
    Annotated[
        bool,
        typer.Option("--hex-keys", help="Keys are given as their serialized bytes, in hex; also with 0x before."),
    ],
    False,
)
_KEY_COLUMNS: Final = option(
    "key_columns",
    Annotated[
        list[str] | None,
        typer.Option(
            "--key-column",
            metavar="NAME=VALUE",
            help="A column of the key, for stores that have them, instead of KEY; one for each column.",
            show_default=False,
        ),
    ],
)
_KEY: Final = "key"
_KEYS: Final = "keys"
# No option begins with a digit, so this is a key.
_NEGATIVE: Final = re.compile(r"-([0-9].*|inf)", re.DOTALL)
# How many stores a message names.
_NAMED_MAX: Final = 5
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


@dataclass(frozen=True, slots=True)
class Inquiry(OptionGroup):
    """Who is asked, and in which form the answer is shown."""

    fmt: OutputOption = OutputFormat.TABLE
    router: RouterAddress = SOME_ROUTER
    timeout: TimeoutOption = 5.0

    @contextmanager
    def client(self, *, direct: bool = True) -> Iterator[Client]:
        """Yield a client of the router. What fails because there is no such store tells of those with such a name."""
        with (
            Client(self.router.target, tls=self.router.tls, timeout=self.timeout, direct=direct) as client,
            naming_stores(client),
        ):
            yield client


@dataclass(frozen=True, slots=True)
class ValueInquiry(Inquiry):
    """An inquiry that reads values."""

    fmt: ValueOutputOption = OutputFormat.TABLE


@contextmanager
def naming_stores(client: Client) -> Iterator[None]:
    """Note the stores with a similar name, or some, at the failure of a read of a store that isn't there.

    It asks as the caller: who may not see the stores learns of none.
    """
    try:
        yield
    except LookupFailure as failure:
        if failure.reason is Reason.UNKNOWN_STORE:
            _note_stores(failure, client)
        raise


def _note_stores(failure: LookupFailure, client: Client) -> None:
    try:
        names = sorted(store.name for store in client.stores())
    except LookupFailure:
        return
    similar = difflib.get_close_matches(failure.metadata.get("store", ""), names, n=_NAMED_MAX)
    if similar:
        failure.add_note(f"did you mean {' or '.join(map(repr, similar))}?")
    elif names:
        more = ", ..." if len(names) > _NAMED_MAX else ""
        failure.add_note(f"there are: {', '.join(names[:_NAMED_MAX])}{more}")


def takes_options(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function: options stand in the place of parameters that are made of several.

    These are an `OptionGroup`, a `RouterAddress`, and a `Freshness`, which has an option for each bound. If a command
    with bounds takes keys (parameters that are `KeyLike`), it has --hex-keys too, with which they reach the function as
    bytes.
    """
    options = list(_options(function))
    hints = {each.name: each.annotation for each in options}
    keys = [name for name, hint in hints.items() if _is_key(hint)]
    takes_several = hints.get(_KEYS) == KeysOrColumnsArgument
    takes_columns = takes_several or hints.get(_KEY) in {KeyArgument, WatchedKeyArgument}
    needs_key = hints.get(_KEY) == KeyArgument

    @functools.wraps(function)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - of the types that the options have
        if keys and arguments[_HEX_KEYS.name]:
            arguments |= {name: _all_from_hex(name, arguments[name]) for name in keys}
        if takes_several:
            arguments[_KEYS] = _keys_or_columns(arguments[_KEYS], arguments[_KEY_COLUMNS.name])
        elif takes_columns:
            arguments[_KEY] = _key_or_columns(arguments[_KEY], arguments[_KEY_COLUMNS.name], needs_key=needs_key)
        function(**_made(function, arguments))

    absent = [*([] if keys else [_HEX_KEYS]), *([] if takes_columns else [_KEY_COLUMNS])]
    parameters = [_typed(each, may_be_left_out=takes_columns) for each in options if each not in absent]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _declared(made: Callable[..., Any]) -> Iterator[Parameter]:
    """Yield the parameters of a function, or the fields of a group, with their types."""
    hints = get_type_hints(made, include_extras=True)
    for each in signature(made).parameters.values():
        yield each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)


def _options(made: Callable[..., Any]) -> Iterator[Parameter]:
    for each in _declared(made):
        if each.annotation is RouterAddress:
            yield from ROUTER_OPTIONS
        elif each.annotation is Freshness:
            yield from (_HEX_KEYS, _KEY_COLUMNS, *_BOUNDS)
        elif _is_group(each.annotation):
            yield from _options(each.annotation)
        else:
            yield each


def _made(made: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function, or of a group, by those of the command."""
    found: dict[str, Any] = {}
    for each in _declared(made):
        if each.annotation is RouterAddress:
            found[each.name] = router_of(arguments)
        elif each.annotation is Freshness:
            bounds = {bound.name: arguments[bound.name] for bound in _BOUNDS if bound.name not in _TOKENS}
            found[each.name] = Freshness(
                **bounds,
                at_least=token(arguments["at_least"]),
                moment=_moment_bound(arguments["moment"], arguments["moment_at_least"]),
            )
        elif _is_group(each.annotation):
            found[each.name] = each.annotation(**_made(each.annotation, arguments))
        else:
            found[each.name] = arguments[each.name]
    return found


def _is_group(hint: Any) -> bool:  # noqa: ANN401 - an annotated type
    return isinstance(hint, type) and issubclass(hint, OptionGroup)


def _typed(each: Parameter, *, may_be_left_out: bool) -> Parameter:
    """Return a parameter with a type that typer knows."""
    if not _is_key(each.annotation):
        return each
    typed, *extras = get_args(each.annotation)
    if each.name in {_KEY, _KEYS} and may_be_left_out:
        return each.replace(annotation=Annotated[(_TYPED[typed] | None, *extras)], default=None)
    return each.replace(annotation=Annotated[(_TYPED[typed], *extras)])


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


def _keys_or_columns(keys: list[KeyLike] | None, columns: list[str] | None) -> list[AnyKey]:
    """Return the keys, given whole, or one by its columns; raises as `_key_or_columns` does."""
    if not keys or columns:
        key = _key_or_columns(keys[0] if keys else None, columns, needs_key=True)
        return [] if key is None else [key]
    return list(keys)


def _is_key(hint: Any) -> bool:  # noqa: ANN401 - an annotated type
    return bool(get_args(hint)) and get_args(hint)[0] in _TYPED


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


def _moment_bound(moment: str | None, at_least: str | None) -> MomentBound | None:
    """Read the values of `--moment` and `--moment-at-least`.

    Raises:
        typer.BadParameter: one is no token, or both say which batch.

    """
    try:
        return bound_of_texts(moment, at_least)
    except ValueError as error:
        hint = "--moment" if at_least is None else "--moment-at-least"
        raise typer.BadParameter(str(error), param_hint=hint) from None


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
