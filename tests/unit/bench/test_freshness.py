"""What is measured in turn, and how the table compares it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.failure import BenchFailure
from bench.freshness.comparison import NOW, Results, order, spark_settings, table, trees_of
from bench.freshness.play import Figures
from bench.sides.servers import ROOT

JVM = "spark.driver.extraJavaOptions=-XX:+UseSerialGC -Da=b; spark.sql.adaptive.enabled=false"


def figures(p50_ms: float, p99_ms: float, batch_ms: float) -> Figures:
    return Figures(p50_ms, p99_ms, batch_ms, {}, 10, 100, 1.0)


def test_settings_of_spark_are_read_or_refused():
    assert spark_settings(JVM) == {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -Da=b",
        "spark.sql.adaptive.enabled": "false",
    }
    for wrong in ("", "sql.adaptive.enabled=false", "spark.a", "spark.a=1;"):
        with pytest.raises(BenchFailure, match="isn't"):
            spark_settings(wrong)


def test_this_tree_is_measured_once_more_with_settings():
    with trees_of(None, [JVM]) as trees:
        assert trees == {NOW: (ROOT, {}), f"{NOW}, {JVM}": (ROOT, spark_settings(JVM))}


def test_an_unknown_commit_is_told():
    with pytest.raises(BenchFailure, match="no commit"), trees_of("no-such-commit", []):
        pass


def test_trees_take_turns_to_be_first_and_the_floor_has_one():
    trees = dict.fromkeys(["old", NOW], (Path(), {}))
    assert list(order(["latest", "floor"], trees, 1)) == [("latest", "old"), ("latest", NOW), ("floor", NOW)]
    assert list(order(["latest", "floor"], trees, 2)) == [("latest", NOW), ("latest", "old"), ("floor", NOW)]


def test_a_table_compares_with_the_first_tree_and_the_floor_round_by_round():
    results: Results = {
        ("latest", "old", 20.0): [figures(100, 200, 80), figures(200, 400, 160), figures(100, 200, 80)],
        ("latest", NOW, 20.0): [figures(50, 50, 20), figures(50, 200, 80), figures(40, 50, 20)],
        ("floor", NOW, 20.0): [figures(9, 9, 10), figures(9, 9, 20), figures(9, 9, 10)],
    }
    assert list(table(results))[2:] == [
        "| latest | old | 20 | 100 | 200 | 80 | -, -, - | 11.11, 22.22, 8.00 |",
        "| latest | now | 20 | 50 | 50 | 20 | 0.40, 0.25, 0.25 | 5.56, 5.56, 2.00 |",
        "| floor | now | 20 | 9 | 9 | 10 | -, -, - | -, -, - |",
    ]
