"""Options that commands share."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from statehouse.cli.addresses import DEFAULT_ROUTER, ROUTER_ENV, RouterAddress
from statehouse.cli.completion import complete_context, complete_store
from statehouse.cli.context_file import CONTEXT_ENV
from statehouse.client import InputRecord
from statehouse.rpc.credentials import VARIABLES

DEFAULT_APPLICATION: Final = "leaderboard"
TIME_HELP: Final = "ISO 8601, UTC unless it has an offset, or epoch milliseconds."

_DURATION: Final = re.compile(r"([0-9]+)([smhd])")
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH_MS: Final = re.compile(r"-?[0-9]{1,19}")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def option(name: str, annotation: Any, default: Any = None) -> Parameter:  # noqa: ANN401 - an annotated type
    """Return a parameter that is an option of a command."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _tls_option(flag: str, field: str, meaning: str, kind: str = "FILE") -> Parameter:
    # Variables are not left to typer: readers of the help must know that they aren't flags.
    said = rf"{meaning}  \[env var: {VARIABLES[field]}]"
    return option(
        f"tls_{field}", Annotated[str | None, typer.Option(flag, metavar=kind, help=said, show_default=False)]
    )


_LOCAL_TLS: Final = r"\[default: as this directory's `statehouse up --tls` has it, else none]"
ROUTER_OPTIONS: Final = (
    option(
        "router",
        Annotated[
            str | None,
            typer.Option(
                metavar="HOST:PORT",
                help=rf"Router to ask.  \[env var: {ROUTER_ENV}]  \[default: the context's, else the one of this "
                f"directory's `statehouse up`, else {DEFAULT_ROUTER}]",
                show_default=False,
            ),
        ],
    ),
    option(
        "context",
        Annotated[
            str | None,
            typer.Option(
                metavar="NAME",
                help=rf"Context to take, in place of variables; '' takes none.  \[env var: {CONTEXT_ENV}]  \[default: "
                "the one that `statehouse context use` has set]",
                show_default=False,
                autocompletion=complete_context,
            ),
        ],
    ),
    _tls_option("--tls-ca", "ca", f"Certificates of the CAs of routers and nodes: call them over TLS.  {_LOCAL_TLS}"),
    _tls_option("--tls-certificate", "certificate", "Certificate to show."),
    _tls_option("--tls-key", "key", "The certificate's private key."),
    _tls_option("--token-file", "token", "File with a bearer token to show."),
    _tls_option(
        "--tls-server-name", "server_name", "Name in the servers' certificates, in place of their host.", "NAME"
    ),
)
SOME_ROUTER: Final = RouterAddress(DEFAULT_ROUTER)
"""In a command's signature; the command gets the one that its options name."""
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


def duration_ms(text: str, digits_max: int) -> int | None:
    """Read how long something lasts, as in 30s, 10m, 1h or 7d; return milliseconds, None if it is no such text.

    `digits_max`: how many digits its number has at most.
    """
    found = _DURATION.fullmatch(text)
    if found is None or len(found[1]) > digits_max:
        return None
    return int(found[1]) * _UNITS_MS[found[2]]


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
