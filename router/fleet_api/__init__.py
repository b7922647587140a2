"""Answers about the fleet, and about inputs and queries of the processor. Nothing here reads a store."""
