"""The topics of an application: what they are to be, how they are made, and whether they are so.

Nothing here writes records.
"""
