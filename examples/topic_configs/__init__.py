"""Counts whose changelog has settings of its own."""
