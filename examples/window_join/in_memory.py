"""The same join with stores in memory: nodes write nothing of them to disk. Run by `statehouse process`."""

from __future__ import annotations

from functools import partial

from examples.window_join import topology

application_id = "window-join-in-memory"

build = partial(topology.build, in_memory=True)
