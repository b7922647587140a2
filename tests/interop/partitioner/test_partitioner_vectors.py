"""The partitioner against Kafka's own Java code, over many random keys."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from statehouse.contract.partitioning import CONFORMANCE_VECTORS, murmur2, partition_for
from statehouse.local.jars import class_path, resolve_jars
from statehouse.local.java import find_java

KEYS: Final = 20_000
SEED: Final = 20_240_501
_PROGRAM: Final = Path(__file__).with_name("PartitionerVectors.java")
_TIMEOUT_S: Final = 120


class Vectors:
    """The program's output: the partition counts, and per key its hash and partitions."""

    def __init__(self, output: str) -> None:
        header, *lines = output.splitlines()
        self.partition_counts = [int(count) for count in header.split(",")[2:]]
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[tuple[bytes, int, list[int]]]:
        for line in self._lines:
            key, hash_, *partitions = line.split(",")
            yield bytes.fromhex(key), int(hash_), [int(partition) for partition in partitions]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    fixed = [key.hex() or "empty" for key, _ in CONFORMANCE_VECTORS]
    done = subprocess.run(
        [str(find_java()), "-cp", class_path(resolve_jars("broker")), str(_PROGRAM), str(KEYS), str(SEED), *fixed],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Vectors(done.stdout)


def test_the_sample_is_wide(vectors: Vectors) -> None:
    keys = [key for key, _, _ in vectors]
    assert len(vectors) == KEYS + len(CONFORMANCE_VECTORS)
    assert {len(key) for key in keys} >= set(range(65))
    assert max(len(key) for key in keys) > 4000
    assert {byte for key in keys for byte in key} == set(range(256))


@pytest.mark.feature("keys-placed-java")
def test_hash_and_partitions_are_as_in_java(vectors: Vectors) -> None:
    wrong = [
        key.hex()
        for key, hash_, partitions in vectors
        if murmur2(key) != hash_ or [partition_for(key, count) for count in vectors.partition_counts] != partitions
    ]
    assert wrong == []


@pytest.mark.feature("keys-placed-java")
def test_the_conformance_vectors_are_as_in_java(vectors: Vectors) -> None:
    by_java = dict(zip((key for key, _, _ in vectors), (hash_ for _, hash_, _ in vectors), strict=True))
    assert {key: by_java[key] for key, _ in CONFORMANCE_VECTORS} == dict(CONFORMANCE_VECTORS)
