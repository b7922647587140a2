"""Watches of stores and of the fleet, which go on at another replica. Nothing here answers a single lookup."""
