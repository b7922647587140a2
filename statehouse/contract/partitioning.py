"""The partition of a key in a changelog: the same one that every Java producer chooses.

This is Kafka's default partitioner for records that have a key: `Utils.toPositive(Utils.murmur2(key)) % partitions`
(org.apache.kafka.common.utils.Utils). The processor, the router, the nodes and Kafka Streams' own producers must agree
on it to the bit: if keys are looked up in another partition than they were written to, the store looks empty.
CONFORMANCE_VECTORS travel with a store's spec, so that a process that disagrees notices before it serves.

Two families of keys need care. A record without a key has no partition here. A window's or session's record is placed
by its plain key, not by the composite key with the window suffix.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

# Made by Kafka's Java client (tests/interop/partitioner makes many more). Each covers a mistake that a port can make:
# every tail length, bytes that are negative in Java, hashes of both signs, a key longer than any fast path.
CONFORMANCE_VECTORS: Final[tuple[tuple[bytes, int], ...]] = (
    (b"", 275646681),
    (b"\x00", 375494588),
    (b"\xff", -311467685),
    (b"\x80\x00", -747627646),
    (b"\x80\x80\x80", -1134684817),
    (b"\xff\xff\x7f", -229777944),
    (b"\x80\x00\x00\x80", 120646186),
    (b"\xff\xfe\xfd\xfc\xfb", 524068735),
    (b"foobar", -790332482),
    ("Zoë".encode(), -1306457314),
    (b"a-little-bit-longer-string", -1486304829),
    (bytes(range(256)), -1948347274),
)


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of `data` with Kafka's seed, signed as a Java int."""
    h = _murmur2_unsigned(data)
    return h - 0x1_0000_0000 if h & 0x8000_0000 else h


def partition_for(key: bytes, partition_count: int) -> int:
    """The partition, from 0 to `partition_count` - 1, of records with this key.

    Raises ValueError if `partition_count` is not positive.
    """
    if partition_count < 1:
        raise ValueError(f"partition_count is {partition_count}; it must be at least 1")
    # Java's toPositive clears the sign bit; it is not abs().
    return (_murmur2_unsigned(key) & 0x7FFF_FFFF) % partition_count


def verify_vectors(vectors: Iterable[tuple[bytes, int]]) -> None:
    """Raise ValueError, naming the key, if this implementation hashes a key to another value than the vector has."""
    for key, expected in vectors:
        actual = murmur2(key)
        if actual != expected:
            raise ValueError(
                f"the partitioner disagrees: key {key.hex() or '(empty)'} hashes to {actual} here, and to {expected} "
                "where the vectors were made"
            )


# Unpackers of n little-endian words, by n. They suffice for keys up to 260 bytes; for longer keys one is made per call.
_WORDS: Final = tuple(Struct(f"<{n}I").unpack_from for n in range(65))


def _murmur2_unsigned(data: bytes) -> int:
    # Every lookup runs this; it is twice as fast as a byte-by-byte port. Python's integers don't wrap, so a mask is
    # needed only where high bits could move down again: before a right shift, and once per word to keep h small. The
    # constants are written out because a literal is loaded faster than a global.
    length = len(data)
    count = length >> 2
    words = _WORDS[count](data) if count < 65 else Struct(f"<{count}I").unpack_from(data)
    h = 0x9747B28C ^ length
    for word in words:
        k = word * 0x5BD1E995 & 0xFFFFFFFF
        h = (h * 0x5BD1E995 ^ (k ^ k >> 24) * 0x5BD1E995) & 0xFFFFFFFF
    if length & 3:
        h = (h ^ int.from_bytes(data[length & ~3 :], "little")) * 0x5BD1E995 & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    return h ^ h >> 15
