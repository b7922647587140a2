"""The leaderboard's HTTP API as an ASGI application, for a server that chooses the address itself.

`python -m examples.leaderboard.http_api` listens on the loopback address only; in a container that would be reachable
by nobody. So there it is `uvicorn deploy.http_app:app`, with UVICORN_HOST and UVICORN_PORT, STATEHOUSE_ROUTER, and
STATEHOUSE_TLS_CA and the like if the router speaks TLS.
"""  # noqa: INP001 - loaded from the working directory

from __future__ import annotations

import os

from examples.http_service import create_app
from examples.leaderboard.http_api import answer
from statehouse.client import DEFAULT_TARGET, AsyncClient, ClientTls

app = create_app(
    lambda: AsyncClient(os.environ.get("STATEHOUSE_ROUTER", DEFAULT_TARGET), tls=ClientTls.from_environment()), answer
)
