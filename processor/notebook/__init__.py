"""Publishes a streaming frame of a running session as a store: three lines in a notebook, no module.

from processor.notebook import publish

counts = publish(events.groupBy("user").count(), store="counts", key="user", bootstrap="127.0.0.1:9092")
counts.get("u1")

Nothing here opens a session.
"""

from processor.notebook.kernel import readable
from processor.notebook.published import PublishedFrame, publish

__all__ = ("PublishedFrame", "publish", "readable")
