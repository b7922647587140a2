"""Publishes micro-batches to the changelogs of stores, exactly once."""
