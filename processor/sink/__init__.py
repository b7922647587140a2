"""Exactly-once publication of micro-batches to a store's changelog."""
