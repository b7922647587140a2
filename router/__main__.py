"""`python -m router`."""

import gc

gc.disable()  # what is imported stays, and looking for garbage in it takes a tenth of the start

from router.cli import router  # noqa: E402 - see above
from statehouse.cli.declared import run_alone  # noqa: E402

gc.enable()
run_alone(router)
