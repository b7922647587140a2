"""The `statehouse` command: what people type, and what they are shown.

Nothing here is imported by a process that serves.
"""
