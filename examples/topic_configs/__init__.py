"""Counts in a store with its own changelog settings."""
