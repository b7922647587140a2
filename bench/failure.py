"""The failure that ends a benchmark early."""

from __future__ import annotations


class BenchFailure(Exception):
    """A run is invalid: an answer was wrong, a request failed that must not, or a process ended."""
