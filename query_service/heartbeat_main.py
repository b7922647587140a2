"""What a node starts beside it to write its heartbeats: `heartbeat_process`, with only the imports that it needs."""

import os
import sys

from statehouse.runtime.imports import program_imports

with program_imports():
    from query_service.heartbeat_process import main

if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # immediately: what the client still holds is of a node that is gone
