"""Calls to nodes: channels, attempts, health, and batched calls. Nothing here chooses a replica."""
