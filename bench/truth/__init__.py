"""Who tells the truth: one workload and one schedule of faults, put to us and to those that people use instead.

Reads ask for a pair of accounts with their counters; `bench.truth.checks` says what is wrong with an answer.
"""

from __future__ import annotations

from typing import Final

SOURCE: Final = "transfers"
"""The topic of all that happens."""
ACCOUNTS: Final = "accounts"
COUNTERS: Final = "counters"
QUERY: Final = "bank"
