"""Histograms that one thread counts in: they show what Prometheus' own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from statehouse.observability.histograms import OneThreadHistograms
from statehouse.observability.metrics import new_registry

BOUNDS = (0.000_05, 0.5, 1, 250)


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 300), st.integers(1, 5))))
def test_they_show_the_same_as_those_of_prometheus(values: list[tuple[str, int, int]]) -> None:
    ours, theirs = new_registry(), CollectorRegistry()
    found = OneThreadHistograms("things_seconds", "Said", ("store",), BOUNDS, ours)
    expected = Histogram("things_seconds", "Said", ("store",), buckets=BOUNDS, registry=theirs)
    for store, value, number in values:
        found.labels(store).add(value, number)
        for _ in range(number):
            expected.labels(store).observe(value)
    assert sorted(generate_latest(ours).splitlines()) == sorted(generate_latest(theirs).splitlines())
