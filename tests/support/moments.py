"""Batches' ids and the header's value of each, the same in every language."""

from __future__ import annotations

from typing import Final

HEADER_VECTORS: Final = (
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16_383, "ff7f"),
    (16_384, "808001"),
    (2**31 - 1, "ffffffff07"),
    (2**32, "8080808010"),
    (2**62, "808080808080808040"),
    (2**63 - 1, "ffffffffffffffff7f"),
)
