"""The control topics: what they hold, and who reads and writes them.

Nothing here decides who holds a task.
"""
