"""The partitioner against hashes made by Kafka's Java client, and against a second, plain port."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.partitioning import CONFORMANCE_VECTORS, murmur2, partition_for, verify_vectors


def _plain_murmur2(data: bytes) -> int:
    """As the Java source reads, byte by byte, with every step masked."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) // 4 * 4
    h = 0x9747B28C ^ len(data)
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    tail = data[whole:]
    for place, byte in enumerate(tail):
        h ^= byte << (8 * place)
    if tail:
        h = h * m & mask
    h = (h ^ (h >> 13)) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h >= 1 << 31 else h


@pytest.mark.parametrize(("key", "expected"), CONFORMANCE_VECTORS)
def test_hashes_as_java_does(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


def test_the_vectors_cover_what_ports_get_wrong() -> None:
    keys = [key for key, _ in CONFORMANCE_VECTORS]
    assert {len(key) % 4 for key in keys} == {0, 1, 2, 3}
    assert {key[len(key) // 4 * 4 :] > b"\x7f" for key in keys if len(key) % 4} == {True, False}
    assert {hash_ < 0 for _, hash_ in CONFORMANCE_VECTORS} == {True, False}


@given(st.binary(max_size=600))
def test_hashes_as_the_plain_port_does(key: bytes) -> None:
    assert murmur2(key) == _plain_murmur2(key)


@pytest.mark.parametrize("length", [255, 256, 257, 259, 260, 261, 263, 264, 1001])
def test_keys_around_the_longest_prepared_length(length: int) -> None:
    key = bytes(i * 7 & 0xFF for i in range(length))
    assert murmur2(key) == _plain_murmur2(key)


@given(st.binary(max_size=40), st.integers(min_value=1, max_value=2**31 - 1))
def test_partition_clears_the_sign_bit(key: bytes, count: int) -> None:
    assert partition_for(key, count) == (murmur2(key) & 0x7FFFFFFF) % count


def test_a_negative_hash_is_not_made_positive_by_abs() -> None:
    # -790332482: toPositive gives 1357151166, and abs would give 790332482.
    assert partition_for(b"foobar", 1000) == 166


@pytest.mark.parametrize("count", [0, -1])
def test_partition_count_must_be_positive(count: int) -> None:
    with pytest.raises(ValueError, match=f"partition_count is {count}"):
        partition_for(b"key", count)


def test_verify_vectors_accepts_our_own() -> None:
    verify_vectors(CONFORMANCE_VECTORS)


@pytest.mark.feature("keys-placed-java")
@pytest.mark.parametrize(("key", "named"), [(b"foobar", "666f6f626172"), (b"", "(empty)")])
def test_verify_vectors_names_the_key_and_both_hashes(key: bytes, named: str) -> None:
    with pytest.raises(ValueError, match="disagrees") as caught:
        verify_vectors([*CONFORMANCE_VECTORS, (key, 1)])
    assert named in str(caught.value)
    assert str(murmur2(key)) in str(caught.value)
