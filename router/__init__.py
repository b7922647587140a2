"""The router: finds the replicas of a key, asks them in a sensible order, and never guesses an answer.

Its rooms are in the order of a lookup's path: fleet, choice, telemetry, calls, lookups, then watches and fleet_api. A
room imports only rooms before it. The modules outside the rooms are the top: they wire the rooms together, and no room
imports them.
"""
