"""`statehouse new`: the folder of one's own application."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[
        str,
        typer.Argument(help="The name of the application, its folder and its topics, as in hello.", show_default=False),
    ],
) -> None:
    """Make a folder with an application that runs: topology, sample data, tests, settings.

    It is made in the working directory. `statehouse up` in it runs the application in a local cluster.
    """
    from statehouse.local.new_application import make_application  # noqa: PLC0415 - other commands need none of it

    folder, paths = make_application(Path(), name)
    print(f"{folder}/ has a new application:")
    for path in paths:
        print(f"  {path}")
    print(f"Run it:    cd {folder} && statehouse up")
    print("Test it:   python -m pytest   (needs pytest, and no Kafka)")
