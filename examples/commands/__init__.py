"""Commands judged against the state of what they are for."""
