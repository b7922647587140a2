"""What is refused with which version of Spark."""

from __future__ import annotations

import pytest

from processor.spark.versions import NEWEST, OLDEST, Feature, SparkVersion, ensure_has, has, is_known
from statehouse.errors import ConfigurationError
from statehouse.local.errors import ConnectorUnknown
from statehouse.local.jars import SPARK_JARS, connectors_for


@pytest.mark.parametrize("text", ["4.1.0", "4.1.1", "4.1.0.dev2", "4.1"])
def test_a_version_is_its_first_two_numbers(text: str) -> None:
    assert SparkVersion.parse(text) == SparkVersion(4, 1)
    assert str(SparkVersion.parse(text)) == "4.1"


@pytest.mark.parametrize("text", ["", "4", "four.one", ".1"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no version"):
        SparkVersion.parse(text)


def test_versions_are_ordered_by_number() -> None:
    assert SparkVersion.parse("4.10.0") > SparkVersion.parse("4.9.3") > SparkVersion.parse("3.50.0")


@pytest.mark.feature("applications-data-source")
@pytest.mark.parametrize("feature", Feature)
def test_what_a_version_lacks_is_refused_by_name(feature: Feature) -> None:
    ensure_has(f"{feature.since}.0", feature)
    assert not has("3.5.7", feature)
    with pytest.raises(ConfigurationError) as refused:
        ensure_has("3.5.7", feature)
    for words in ("Spark 3.5.7 lacks", feature.spark_name, feature.needed_by, f"since Spark {feature.since}"):
        assert words in str(refused.value)


def test_old_ones_are_refused_and_newer_ones_are_not_known() -> None:
    assert is_known(f"{OLDEST}.0")
    assert is_known(f"{NEWEST}.9")
    assert not is_known("4.3.0")
    with pytest.raises(ConfigurationError, match=r"Spark 3\.4\.4 is too old: applications need Spark 3\.5 or newer"):
        is_known("3.4.4")


def test_each_known_version_has_connectors_and_others_have_none() -> None:
    assert {SparkVersion.parse(name) for name in SPARK_JARS} >= {OLDEST, NEWEST}
    assert connectors_for("4.2.7") is SPARK_JARS["4.2"]
    with pytest.raises(
        ConnectorUnknown, match=r"Spark 4\.3\.0 is not known, only of 3\.5, 4\.0, 4\.1, 4\.2.*spark\.jars"
    ):
        connectors_for("4.3.0")
