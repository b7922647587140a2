"""The controller's state: members, sessions, numbers of sub-topologies, who acts. Events go in, decisions come out.

Nothing here does I/O.
"""
