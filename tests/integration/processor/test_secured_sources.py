"""Spark reads from a broker that asks for logins, and its plan shows no secret."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclOperation, ResourcePatternType, ResourceType
from pyspark.sql import SparkSession

from processor.attach.reader import changelog_entries
from processor.spark.kafka_options import spark_options
from statehouse.kafka.access import AccessRefused, check_login
from statehouse.runtime.brokers import Brokers
from tests.support.kafka import create_topic, produce
from tests.support.secured_kafka import SecuredKafka

WORD = "s3cret/+=;:'$x"
TOPIC = "read"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured"), {"reader": WORD}) as broker:
        create_topic(broker.bootstrap, TOPIC, 1)
        produce(broker.bootstrap, TOPIC, [(b"a", b"1")])
        broker.grant("reader", [(ResourceType.TOPIC, ResourcePatternType.LITERAL, TOPIC, AclOperation.READ)])
        yield broker


def reads(spark: SparkSession, brokers: Brokers, capfd: pytest.CaptureFixture[str]) -> None:
    entries = changelog_entries(spark, brokers, TOPIC)
    assert [bytes(row[1]) for row in entries.collect()] == [b"1"]
    entries.explain("extended")
    shown = capfd.readouterr()
    assert "kafka" in shown.out.lower()
    assert WORD not in shown.out + shown.err + str(spark_options(brokers))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_source_logs_in_with_a_password(
    secured: SecuredKafka, spark: SparkSession, capfd: pytest.CaptureFixture[str], mechanism: str
) -> None:
    reads(spark, secured.brokers("reader", mechanism), capfd)  # type: ignore[arg-type]


def test_a_source_logs_in_with_a_certificate(
    secured: SecuredKafka, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    reads(spark, secured.brokers_by_certificate(secured.ca.issue(["reader"])), capfd)


def test_a_source_and_a_client_log_in_with_tokens(
    secured: SecuredKafka, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with secured.issuer as issuer:
        issuer.secrets["reader"] = "another"
        brokers = secured.brokers("reader", "OAUTHBEARER", oauth_token_url=issuer.url)
        with pytest.raises(AccessRefused, match="OAUTHBEARER"):
            check_login(brokers, "test")
        issuer.secrets["reader"] = WORD
        check_login(brokers, "test")
        reads(spark, brokers, capfd)
