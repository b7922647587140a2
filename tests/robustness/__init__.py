"""Real processes under traffic and faults: a history of every lookup, what must hold of it, and a report."""
