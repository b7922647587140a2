"""Versions of an application: deploy one while another serves, promote it, go back, and retire the old one."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from statehouse.cli import output as out
from statehouse.cli.addresses import ROUTER_ENV, RouterAddress, router_of
from statehouse.cli.kafka_options import takes_application
from statehouse.cli.options import duration_ms
from statehouse.cli.output import Column, OutputFormat, OutputOption
from statehouse.cli.promotable import obstacles
from statehouse.client import Client, Fleet
from statehouse.contract.version_names import application_of
from statehouse.contract.versions import VersionRefused, Versions
from statehouse.errors import LookupFailure, Reason
from statehouse.kafka.access import check_login, failures_told
from statehouse.kafka.version_record import change_versions, read_versions
from statehouse.observability import logs
from statehouse.runtime.clocks import process_clock
from statehouse.settings import LoadedSettings
from statehouse.settings.common import ApplicationIdSettings

_KEEP_DIGITS_MAX: Final = 6
_POLL_S: Final = 0.05
_ROUTER_TIMEOUT_S: Final = 5.0

VersionArgument = Annotated[str, typer.Argument(metavar="VERSION", help="Name of the version.", show_default=False)]
RouterOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help=rf"Routers to ask, all that callers ask, separated by commas.  \[env var: {ROUTER_ENV}]  \[default: the "
        "context's, else the local cluster's]",
        show_default=False,
    ),
]
KafkaTimeoutOption = Annotated[
    float, typer.Option(min=0.001, metavar="SECONDS", help="Longest wait for Kafka, and then for the routers.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it all the same.")]


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRow:
    """A version, as `statehouse versions` shows it."""

    version: str
    application_id: str
    state: str
    partitions: tuple[int, ...] = ()
    backlog: int | None = None
    obstacles: tuple[str, ...] = ()


COLUMNS: Final[Sequence[Column[VersionRow]]] = (
    Column("VERSION", lambda each: each.version),
    Column("STATE", lambda each: each.state),
    Column("PARTITIONS", lambda each: each.partitions),
    Column("BACKLOG", lambda each: "-" if each.backlog is None else each.backlog),
    Column("NOT READY", lambda each: each.obstacles[0] if each.obstacles else "-"),
    Column("APPLICATION", lambda each: each.application_id, is_wide=True),
)


def kept_ms(text: str) -> int:
    """Read the value of --keep; return milliseconds.

    Raises:
        typer.BadParameter: it is no such text.

    """
    found = duration_ms(text, _KEEP_DIGITS_MAX)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration: write 30s, 10m, 1h or 7d", param_hint="--keep")
    return found


@takes_application
def versions(
    loaded: LoadedSettings[ApplicationIdSettings],
    router: RouterOption = None,
    timeout: KafkaTimeoutOption = 10.0,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the versions of the application: which one serves, and whether the others could."""
    known = known_versions(loaded.settings, timeout)
    rows = [_row(version, known, loaded.settings.application_id, router_named(router)) for version in known.all]
    out.show_items(output, COLUMNS, rows, lambda each: each.version)


@takes_application
def promote(
    loaded: LoadedSettings[ApplicationIdSettings],
    version: VersionArgument,
    keep: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the version from before is kept for a rollback.")
    ] = "1h",
    max_backlog: Annotated[
        int, typer.Option(min=0, metavar="RECORDS", help="Most records of its sources that it may have to process yet.")
    ] = 1_000,
    router: RouterOption = None,
    force: ForceOption = False,
    timeout: KafkaTimeoutOption = 10.0,
) -> None:
    """Have a version answer under the application's name, at all routers; the other one is kept.

    Refused unless each of its partitions is restored by its active, and its processor keeps up. Waits until the named
    routers have switched.
    """
    rollback_ms = kept_ms(keep)
    address = router_named(router)
    if not force:
        _require_ready(version, address, max_backlog)

    def promoted(known: Versions) -> Versions:
        return known.promoted(version, process_clock().now_ms() + rollback_ms)

    change(loaded.settings, promoted, timeout, address)
    out.note(f"`statehouse rollback` leads back for {keep}")


@takes_application
def rollback(
    loaded: LoadedSettings[ApplicationIdSettings],
    router: RouterOption = None,
    timeout: KafkaTimeoutOption = 10.0,
) -> None:
    """Have the version answer again that did before the last promotion, as long as it is kept."""
    change(loaded.settings, lambda known: known.rolled_back(process_clock().now_ms()), timeout, router_named(router))


def change(
    settings: ApplicationIdSettings,
    to: Callable[[Versions], Versions],
    timeout: float,
    address: RouterAddress,
) -> Versions:
    """Change the versions to what `to` makes of them, and wait until the routers know.

    Raises:
        VersionRefused: it can't be made.
        LookupFailure: Kafka can't be reached, or a router has not followed in time.

    """
    logs.configure("WARNING")
    name = settings.application_id
    check_login(settings.brokers, f"{name}-versions", timeout)
    with failures_told(settings.brokers):
        changed = change_versions(settings.brokers, name, to, timeout)
    for target in address.target.split(","):
        _await_router(RouterAddress(target, address.tls), changed, timeout)
    out.note(f"version {changed.serving} of {name} serves")
    return changed


def _await_router(address: RouterAddress, changed: Versions, timeout: float) -> None:
    """Wait until a router has switched.

    Raises:
        LookupFailure: it has not in time.

    """
    give_up_at = time.monotonic() + timeout
    with Client(address.target, tls=address.tls, direct=False, timeout=min(timeout, _ROUTER_TIMEOUT_S)) as client:
        while True:
            known = client.fleet().versions
            if known is not None and known.number >= changed.number and known.serving == known.wanted:
                return
            if time.monotonic() >= give_up_at:
                raise LookupFailure(
                    Reason.DEADLINE_EXCEEDED,
                    f"the change is made, but the router {address.target} has not followed it within {timeout:g} s: "
                    "`statehouse versions` shows what keeps it",
                    {"target": address.target},
                )
            time.sleep(_POLL_S)


def known_versions(settings: ApplicationIdSettings, timeout: float) -> Versions:
    """Return the versions of an application, as Kafka has them."""
    logs.configure("WARNING")
    check_login(settings.brokers, f"{settings.application_id}-versions", timeout)
    with failures_told(settings.brokers):
        return read_versions(settings.brokers, settings.application_id, timeout)


def _require_ready(version: str, address: RouterAddress, most_backlog: int) -> None:
    """Refuse to promote a version that can't serve.

    Raises:
        VersionRefused: it can't.
        LookupFailure: the router doesn't know it, or can't be reached.

    """
    with Client(address.target, tls=address.tls, direct=False, timeout=_ROUTER_TIMEOUT_S) as client:
        served = [store.name for store in client.fleet().stores]
        try:
            found = list(obstacles(client.fleet(version=version), served, most_backlog))
        except LookupFailure as failure:
            if failure.reason is not Reason.UNKNOWN_VERSION:
                raise
            found = [failure.message]
    if found:
        raise VersionRefused(
            f"version {version} is not ready: {'; '.join(found[:5])}. --force promotes it all the same"
        )


def _row(version: str, known: Versions, name: str, address: RouterAddress) -> VersionRow:
    fleet: Fleet | None = None
    why: tuple[str, ...] = ()
    try:
        with Client(address.target, tls=address.tls, direct=False, timeout=_ROUTER_TIMEOUT_S) as client:
            fleet = client.fleet(version=version)
            why = tuple(obstacles(fleet, (), 2**53))
    except LookupFailure as failure:
        why = (failure.reason.name,)
    counts = () if fleet is None else tuple(sorted({store.partition_count for store in fleet.stores}))
    backlogs = [] if fleet is None else [each.input_backlog for each in fleet.queries]
    backlog = sum(filter(None, backlogs)) if backlogs and None not in backlogs else None
    return VersionRow(version, application_of(name, version), _state(version, known), counts, backlog, why)


def _state(version: str, known: Versions) -> str:
    if version == known.serving:
        return "serves"
    if version == known.before:
        left_s = (known.kept_until_ms - process_clock().now_ms()) // 1000
        return f"kept for {left_s} s more" if left_s > 0 else "not kept any longer"
    return "deployed"


def router_named(given: str | None) -> RouterAddress:
    """Return the routers to ask."""
    return router_of({"router": given})
