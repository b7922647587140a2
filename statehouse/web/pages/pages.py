"""The pages that show the fleet: which there are, who may see each, and what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final

from starlette.datastructures import QueryParams

from statehouse.web.pages.recorder import Moment, Recorder
from statehouse.web.pages.views.changelogs import changelogs_view
from statehouse.web.pages.views.heat import HeatOf, heat_view
from statehouse.web.pages.views.map import map_view
from statehouse.web.pages.views.nodes import nodes_view
from statehouse.web.pages.views.overview import overview
from statehouse.web.pages.views.queries import queries_view
from statehouse.web.pages.views.reads import stores_view
from statehouse.web.pages.views.restores import restores_view
from statehouse.web.pages.views.routing import routing_view

NAME_MAX: Final = 300
"""Characters of a name in a query."""
NUMBER_MAX: Final = 2**63 - 1


class BadQuery(Exception):
    """A parameter of a page's address can't be used."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a page is made from: the fleet, the time, and the parameters of its address."""

    recorder: Recorder
    now: Moment
    query: QueryParams
    has_metrics: bool = False


class Group(StrEnum):
    """What a page is about: the menu has them in this order."""

    FLEET = "Fleet"
    DATA = "Data"
    TOPOLOGY = "Topology"
    PROCESSING = "Processing"
    ROUTING = "Routing"


@dataclass(frozen=True, slots=True)
class LivePage:
    """A page that shows the fleet as it is, again and again.

    `path`: without its slash; the JSON twin has ".json" behind it, the stream "/live/" before it. `call`: the call of
    gRPC that its reader must be allowed to make.
    """

    path: str
    title: str
    call: str
    group: Group
    view: Callable[[Seen], Any]

    @property
    def template(self) -> str:
        """The file that shows it."""
        return f"{self.name}.html"

    @property
    def name(self) -> str:
        """Its name in addresses of its JSON and its stream."""
        return self.path or "fleet"


def _map(seen: Seen) -> Any:  # noqa: ANN401 - a view
    query = seen.query
    epoch = number(query, "epoch")
    if epoch is not None and seen.recorder.fleet is not None and seen.recorder.epochs.find(epoch) is None:
        raise BadQuery(f"epoch {epoch} is not known here, or not any more")
    return map_view(seen.recorder, seen.now.epoch_ms, store(seen), number(query, "from"), number(query, "to"), epoch)


def _heat(seen: Seen) -> Any:  # noqa: ANN401 - a view
    query = seen.query
    try:
        of = HeatOf(query.get("of", HeatOf.LOOKUPS))
    except ValueError:
        raise BadQuery(f"of must be one of {', '.join(HeatOf)}") from None
    return heat_view(seen.recorder, of, store(seen), number(query, "from"), number(query, "to"))


def _stores(seen: Seen) -> Any:  # noqa: ANN401 - a view
    fleet = seen.recorder.fleet
    return stores_view(() if fleet is None else fleet.stores, seen.recorder.heard())


LIVE_PAGES: Final[Mapping[str, LivePage]] = MappingProxyType(
    {
        page.name: page
        for page in (
            LivePage(
                "",
                "Overview",
                "GetFleet",
                Group.FLEET,
                lambda seen: overview(seen.recorder, seen.now, is_measured=seen.has_metrics),
            ),
            LivePage("map", "Partitions", "GetFleet", Group.TOPOLOGY, _map),
            LivePage("heat", "Heat map", "GetFleet", Group.TOPOLOGY, _heat),
            LivePage(
                "nodes",
                "Nodes",
                "GetFleet",
                Group.FLEET,
                lambda seen: nodes_view(seen.recorder, seen.now, page_of(seen.query)),
            ),
            LivePage(
                "restores",
                "Restores",
                "GetFleet",
                Group.TOPOLOGY,
                lambda seen: restores_view(seen.recorder, page_of(seen.query)),
            ),
            LivePage(
                "queries", "Queries", "GetFleet", Group.PROCESSING, lambda seen: queries_view(seen.recorder, seen.now)
            ),
            LivePage(
                "routing",
                "Routing",
                "GetFleet",
                Group.ROUTING,
                lambda seen: routing_view(seen.recorder, is_measured=seen.has_metrics),
            ),
            LivePage("stores", "Stores", "ListStores", Group.DATA, _stores),
            LivePage(
                "changelogs",
                "Changelogs",
                "ListChangelogs",
                Group.DATA,
                lambda seen: changelogs_view(seen.recorder, seen.now, page_of(seen.query)),
            ),
        )
    }
)


LOOKUP: Final = LivePage("lookup", "Look up", "ExplainGet", Group.DATA, lambda _seen: None)
"""In the menu only: it shows no more than it was asked for."""


def menu() -> list[tuple[Group, list[LivePage]]]:
    """Return the menu: the pages by what they are about."""
    order = list(Group)
    pages = sorted((*LIVE_PAGES.values(), LOOKUP), key=lambda page: order.index(page.group))
    return [(group, list(found)) for group, found in groupby(pages, key=lambda page: page.group)]


def store(seen: Seen) -> str | None:
    """Return the store that an address names, None without one.

    Raises:
        BadQuery: there is no such store.

    """
    name = text(seen.query, "store")
    if name and seen.recorder.fleet is not None and seen.recorder.store(name) is None:
        raise BadQuery(f"there is no store {name!r}")
    return name or None


def page_of(query: QueryParams) -> int:
    """Return the number of the page that an address names, from 1."""
    return number(query, "page") or 1


def number(query: QueryParams, name: str) -> int | None:
    """Return a whole number that is not negative, None without one.

    Raises:
        BadQuery: the text is none.

    """
    given = text(query, name)
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and int(given) <= NUMBER_MAX):
        raise BadQuery(f"{name} must be a whole number, not {given!r}")
    return int(given)


def text(query: QueryParams, name: str, most: int = NAME_MAX) -> str:
    """Return a parameter, empty without one.

    Raises:
        BadQuery: it is longer than `most` characters, or there are several.

    """
    given = query.getlist(name)
    if len(given) > 1:
        raise BadQuery(f"{name} is given more than once")
    if given and len(given[0]) > most:
        raise BadQuery(f"{name} is longer than {most:,} characters")
    return given[0] if given else ""
