"""The fields of records: their types, and how a value is read as one.

Nothing here knows a source.
"""
