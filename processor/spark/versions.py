"""Which versions of Spark are known to work, and what each of them lacks (docs/compatibility.md). Pure.

What a version lacks is refused by name where an application asks for it, before a query starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class SparkVersion:
    """A version of Spark, as far as features depend on it."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `pyspark.__version__` says, as in `4.2.0` or `4.1.0.dev1`.

        Raises:
            ConfigurationError: it doesn't begin with two numbers.

        """
        match = re.match(r"(\d+)\.(\d+)(?!\d)", text)
        if match is None:
            raise ConfigurationError(f"Spark says that its version is {text!r}, which is no version")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Show it to people."""
        return f"{self.major}.{self.minor}"


OLDEST: Final = SparkVersion(3, 5)
NEWEST: Final = SparkVersion(4, 2)
"""The newest one that tests run with."""


class Feature(Enum):
    """What not all versions have: since which one, what of ours needs it, and what Spark calls it."""

    PARSERS = (SparkVersion(4, 0), "parse_json, parse_text and what reads as they do", "variants, is_valid_utf8")
    PYTHON_STATE = (
        SparkVersion(4, 0),
        "an operator of `processor.operators` that keeps state (aggregate, joins, fill_event_time)",
        "transformWithStateInPandas",
    )
    TESTS = (SparkVersion(4, 0), "processor.testing", "DataFrame.toArrow")
    ROW_STATE = (SparkVersion(4, 1), "a store with max_entries or suppress", "transformWithState")
    ARROW_FUNCTIONS = (SparkVersion(4, 1), "parse_avro and parse_protobuf", "arrow_udf")

    def __init__(self, since: SparkVersion, needed_by: str, spark_name: str) -> None:
        self.since, self.needed_by, self.spark_name = since, needed_by, spark_name


def has(version: str, feature: Feature) -> bool:
    """Whether a version of Spark has a feature."""
    return SparkVersion.parse(version) >= feature.since


def ensure_has(version: str, feature: Feature) -> None:
    """Return if a version of Spark has a feature.

    Raises:
        ConfigurationError: it lacks it; the text says what needs it, and since when it is there.

    """
    if not has(version, feature):
        raise ConfigurationError(
            f"Spark {version} lacks {feature.spark_name}, which is there since Spark {feature.since}, and which "
            f"{feature.needed_by} needs: install a newer pyspark, or use Spark's own operators"
        )


def is_known(version: str) -> bool:
    """Whether applications were run with a version of Spark; newer ones may work.

    Raises:
        ConfigurationError: it is too old.

    """
    found = SparkVersion.parse(version)
    if found < OLDEST:
        raise ConfigurationError(f"Spark {version} is too old: applications need Spark {OLDEST} or newer")
    return found <= NEWEST
