"""Runs an application: starts and watches its queries, restarts those that die, and resets what they keep.

Nothing here is needed to assign tasks.
"""
