"""The data of the benchmarks: keys and values are computed from numbers, so that every answer can be checked.

`loadgen` has the same code in Go (bench/loadgen/data.go); tests compare both with bench/loadgen/testdata/data.json.
"""

from __future__ import annotations

from typing import Final

VALUE_LENGTH: Final = 100
_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF


def key_of(number: int) -> str:
    """Return key `number`: "k" and eight digits."""
    return f"k{number:08d}"


def value_of(number: int, version: int = 0) -> str:
    """Return the value of key `number` in a version of the data.

    These are the first 100 hexadecimal digits of what splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
    number generators", 2014) yields from the seed `version` * 2^32 + `number`.
    """
    state, words = version << 32 | number, []
    for _ in range(-(-VALUE_LENGTH // 16)):
        state = (state + 0x9E37_79B9_7F4A_7C15) & _MASK
        mixed = (state ^ state >> 30) * 0xBF58_476D_1CE4_E5B9 & _MASK
        mixed = (mixed ^ mixed >> 27) * 0x94D0_49BB_1331_11EB & _MASK
        words.append(f"{mixed ^ mixed >> 31:016x}")
    return "".join(words)[:VALUE_LENGTH]
