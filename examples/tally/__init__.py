"""A running tally of each program's members, also to an output topic."""
