"""Options that commands share."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from statehouse.cli import addresses
from statehouse.cli.addresses import DEFAULT_ROUTER, ROUTER_ENV, RouterAddress, router_of
from statehouse.cli.completion import complete_context, complete_store
from statehouse.cli.context_file import CONTEXT_ENV
from statehouse.client import InputRecord
from statehouse.rpc.credentials import VARIABLES

RUN_DIR: Final = addresses.RUN_DIR
DEFAULT_APPLICATION: Final = "leaderboard"
TIME_HELP: Final = "ISO 8601, UTC unless it has an offset, or epoch milliseconds."

_EPOCH_MS: Final = re.compile(r"-?[0-9]{1,19}")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)

RouterOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help=rf"Router to ask.  \[env var: {ROUTER_ENV}]  \[default: the context's, else the one of this directory's "
        f"`statehouse up`, else {DEFAULT_ROUTER}]",
        show_default=False,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=rf"Context to take, in place of variables; '' takes none.  \[env var: {CONTEXT_ENV}]  \[default: the one "
        "that `statehouse context use` has set]",
        show_default=False,
        autocompletion=complete_context,
    ),
]


def _tls_option(flag: str, field: str, kind: str, meaning: str) -> Any:  # noqa: ANN401 - an annotated type
    return Annotated[
        str | None,
        # Variables are not left to typer: readers of the help must know that they aren't flags.
        typer.Option(flag, metavar=kind, help=rf"{meaning}  \[env var: {VARIABLES[field]}]", show_default=False),
    ]


_LOCAL_TLS: Final = r"\[default: as this directory's `statehouse up --tls` has it, else none]"
TLS_OPTIONS: Final = {
    "ca": _tls_option(
        "--tls-ca", "ca", "FILE", f"Certificates of the CAs of routers and nodes: call them over TLS.  {_LOCAL_TLS}"
    ),
    "certificate": _tls_option("--tls-certificate", "certificate", "FILE", "Certificate to show."),
    "key": _tls_option("--tls-key", "key", "FILE", "The certificate's private key."),
    "token": _tls_option("--token-file", "token", "FILE", "File with a bearer token to show."),
    "server_name": _tls_option(
        "--tls-server-name", "server_name", "NAME", "Name in the servers' certificates, in place of their host."
    ),
}
TimeoutOption = Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for each answer.")]
AfterInputOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TOPIC:PARTITION:OFFSET",
        help="First wait until the processor has committed this record of an input topic, and see its results. May be "
        "repeated.",
        show_default=False,
    ),
]
RunDirOption = Annotated[Path, typer.Option(metavar="DIR", help="Where the local cluster keeps everything.")]
StoreArgument = Annotated[str, typer.Argument(help="Store to read.", show_default=False, autocompletion=complete_store)]


def epoch_ms(option: str, given: str | None) -> int | None:
    """Read a time as epoch milliseconds; fractions of a millisecond are cut off.

    Raises:
        typer.BadParameter: the text is no time.

    """
    if given is None:
        return None
    try:
        if _EPOCH_MS.fullmatch(given) and -(2**63) <= int(given) < 2**63:
            return int(given)
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter(f"{given!r} is no time: {TIME_HELP}", param_hint=option) from None
    return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)


def input_records(given: list[str] | None) -> list[InputRecord]:
    """Read the values of `--after-input`.

    Raises:
        typer.BadParameter: a value names no record.

    """
    records = []
    for text in given or ():
        topic, _, place = text.partition(":")
        try:
            partition, offset = map(int, place.split(":"))
            records.append(InputRecord(topic, partition, offset))
        except ValueError as error:
            message = f"{text!r} is not TOPIC:PARTITION:OFFSET: {error}"
            raise typer.BadParameter(message, param_hint="--after-input") from None
    return records


SOME_ROUTER: Final = RouterAddress(DEFAULT_ROUTER)
"""In a command's signature; the command gets the one that its options name."""


def takes_router(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that calls a router: in the place of its `router` are the options for it."""
    hints = get_type_hints(function, include_extras=True)

    @functools.wraps(function)
    def command(**arguments: Any) -> None:  # noqa: ANN401 - of the types that the options have
        function(router=router_of(arguments), **arguments)

    options = [_parameter("router", RouterOption), _parameter("context", ContextOption)]
    options += [_parameter(f"tls_{field}", option) for field, option in TLS_OPTIONS.items()]
    parameters: list[Parameter] = []
    for each in signature(function).parameters.values():
        if each.name == "router":
            parameters += options
        else:
            parameters.append(each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY))
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    return command


def _parameter(name: str, annotation: Any) -> Parameter:  # noqa: ANN401 - an annotated type
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
