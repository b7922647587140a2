"""Replicas: opens, restores, follows and closes tasks. Nothing here answers a request."""
