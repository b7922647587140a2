"""Real processes under traffic and faults: a history of every lookup, the checks of it, and a report."""
