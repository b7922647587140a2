"""Topologies whose Python raises: `statehouse check` finds nothing wrong, and the failure has file and line."""
