"""Operators on frames: parsing, joins and aggregates; each takes and returns ordinary DataFrames.

Nothing here writes to a store.
"""
