"""Helpers of every process: background tasks, pauses, waits, batches, clocks, bounds.

Nothing here knows what a process serves.
"""
