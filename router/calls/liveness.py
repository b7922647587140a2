"""Shows the proxy that this process lives: one that is frozen, or hangs, keeps no caller waiting.

The proxy fails all calls with UNAVAILABLE when it has heard nothing for three seconds (`dataplane/liveness.go`).
Callers that know another router go on there; the others learn why before their deadlines.
"""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from statehouse.link.link import Link, ToProxy

# A loop that is busy for two seconds is no reason to fail calls.
_SAID_EVERY_S: Final = 0.5


async def show_liveness(link: Link) -> NoReturn:
    """Say that this process lives, for ever."""
    while True:
        link.send(ToProxy.ALIVE)
        await asyncio.sleep(_SAID_EVERY_S)
