"""`python -m router`."""

import typer

from router.cli import router

typer.run(router)
