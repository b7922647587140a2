"""The query node: restores state from changelogs, follows them, and answers reads for the partitions it holds.

Its rooms, in the order that data takes: states, disk, stores, telemetry, replicas, reads, watches. A room imports only
rooms before it. The modules outside the rooms are the top: they wire the rooms together, and no room imports them.
"""
