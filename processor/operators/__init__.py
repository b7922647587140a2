"""Operators on frames: parsing, joins and aggregates, each of them ordinary PySpark."""
