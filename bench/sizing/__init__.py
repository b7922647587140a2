"""Measures what `statehouse size` calculates with, and how far fleets are from what it calculates."""
