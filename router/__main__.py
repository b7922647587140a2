"""`python -m router`."""

from statehouse.runtime.imports import uncollected

with uncollected():
    from router.cli import router
    from statehouse.cli.declared import run_alone

run_alone(router)
