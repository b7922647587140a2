"""Decisions: which replicas to ask, in which order, for how long, and why not the others. Nothing here makes a call."""
