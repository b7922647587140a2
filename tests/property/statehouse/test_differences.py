"""A comparison of two stores finds each difference, and says in which range of keys it is."""

from __future__ import annotations

from collections.abc import Mapping
from operator import eq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.contract.differences import Difference, compared

STORES = st.dictionaries(st.binary(max_size=3), st.integers(0, 2), max_size=60)


@given(STORES, STORES, st.integers(0, 5), st.sampled_from([2, 4, 16]))
def test_it_finds_exactly_what_differs(
    first: Mapping[bytes, int], second: Mapping[bytes, int], samples: int, ranges: int
) -> None:
    found = compared(sorted(first.items()), sorted(second.items()), eq, samples, ranges)
    expected = [
        (key, Difference.EXTRA if key not in first else Difference.MISSING if key not in second else Difference.OTHER)
        for key in sorted({*first, *second})
        if key not in first or key not in second or first[key] != second[key]
    ]
    assert found.keys == len({*first, *second})
    assert found.differing == len(expected)
    assert found.counts == {kind: sum(each is kind for _, each in expected) for kind in Difference}
    assert [(each.key, each.difference) for each in found.samples] == expected[:samples]
    for each in found.samples:
        assert (each.first, each.second) == (first.get(each.key), second.get(each.key))
    assert len(found.ranges) <= ranges
    keys = sorted({*first, *second})
    at = 0
    for each in found.ranges:
        held = keys[at : at + each.keys]
        assert (each.first, each.last) == (held[0], held[-1])
        assert each.differing == sum(key in held for key, _ in expected)
        at += each.keys
    assert at == len(keys)
    assert len({each.keys for each in found.ranges[:-1]}) <= 1


def test_keys_that_are_not_in_order_are_refused():
    with pytest.raises(ValueError, match="comes behind"):
        compared([(b"b", 1), (b"a", 1)], [], eq)
