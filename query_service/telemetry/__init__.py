"""Listeners, progress and metrics: how the node reports what it does. Nothing here decides."""
