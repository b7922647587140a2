"""Counts of the ten most recent patients of each partition."""
