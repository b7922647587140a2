"""`python -m router`."""

from router.cli import router
from statehouse.cli.declared import run_alone

run_alone(router)
