"""The same join with in-memory stores: nodes don't write them to disk. Run it with `statehouse process`."""

from __future__ import annotations

from functools import partial

from examples.window_join import topology

application_id = "window-join-in-memory"

build = partial(topology.build, in_memory=True)
