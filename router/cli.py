"""The command line of a router: `statehouse router` and `python -m router`."""

from __future__ import annotations

from router.server import run
from router.workers import run_workers
from statehouse.cli.declared import takes_settings
from statehouse.settings import LoadedSettings, RouterSettings


@takes_settings(RouterSettings)
def router(loaded: LoadedSettings[RouterSettings]) -> None:
    """Run a router: one address that answers for every partition of every store.

    Every option can also be given as STATEHOUSE_<NAME> or in a TOML file. `statehouse config show router` takes the
    same options and prints the resulting settings.
    """
    if loaded.settings.workers == 1:
        run(loaded.settings)
    else:
        run_workers(loaded.settings)
