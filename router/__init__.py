"""The router: finds the replicas of a key, asks them in a sensible order, and never guesses an answer."""
