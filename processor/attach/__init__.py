"""Serves the state of a streaming query that another program runs, by following its checkpoint.

Nothing here changes that checkpoint.
"""
