"""The parts and the order of composite keys: windows, sessions, columns.

Nothing here knows a store.
"""
