"""Commands that are checked against the state of their objects."""
