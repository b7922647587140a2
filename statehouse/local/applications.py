"""The applications that a local cluster can run: installed packages name them, by entry points."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

from statehouse.local.errors import LocalError

GROUP: Final = "statehouse.applications"


@dataclass(frozen=True, slots=True)
class LocalApplication:
    """What a local cluster has to know about an application.

    `name` is the entry point's. `topology` names the module for `statehouse process`; `producer` and `http_api` name
    modules that `python -m` runs. `producer` creates the source topics and feeds the sample data. `http_page` is a path
    of the HTTP API to show people, `http_probe` one that answers once the API works. The first lookup asks for `key` in
    `store`.
    """

    name: str
    application_id: str
    topology: str
    producer: str
    http_api: str
    http_page: str
    http_probe: str
    store: str
    key: str


def installed_application(name: str) -> LocalApplication:
    """Return the application that an installed package offers under this name.

    Raises:
        LocalError: there is none, or it can't be imported from here.

    """
    offered = {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
    if name not in offered:
        raise LocalError(f"there is no application {name!r}; installed are: {', '.join(sorted(offered)) or 'none'}.")
    try:
        application = offered[name].load()
    except ModuleNotFoundError as error:
        raise LocalError(
            f"application {name!r} can't be imported from here ({error}). Run this in a checkout of the project."
        ) from error
    if not isinstance(application, LocalApplication) or application.name != name:
        raise LocalError(f"{offered[name].value} must be a LocalApplication named {name!r}.")
    return application
