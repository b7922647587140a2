"""Serves the state of a streaming query that another program runs, by following its checkpoint."""
