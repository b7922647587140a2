"""`python -m query_service`: the same as `statehouse node`."""

import gc

gc.disable()  # what is imported stays, and looking for garbage in it takes a tenth of the start

from query_service.cli import node  # noqa: E402 - see above
from statehouse.cli.declared import run_alone  # noqa: E402

if __name__ == "__main__":
    gc.enable()
    run_alone(node)
