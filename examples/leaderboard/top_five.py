"""The leaderboard's next version: the five best of each product, under the same name.

Try it beside the version that serves: `statehouse deploy v2 --app examples.leaderboard.top_five --partitions 16`.
"""

from __future__ import annotations

from examples.leaderboard import topology
from processor.application import Application

application_id = topology.application_id


def build(app: Application) -> None:
    """Declare the sources, the query and the store."""
    topology.declare_boards(app, 5)
