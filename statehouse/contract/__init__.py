"""What the processes of an application agree on: assignment, members, stores, positions, pages, freshness.

Nothing here does I/O.
"""
