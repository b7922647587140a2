"""The login of Spark's Kafka sources: options that plans show, without a secret in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from processor.spark.kafka_options import client_options, spark_options
from statehouse.errors import ConfigurationError
from statehouse.kafka.security import Credentials
from statehouse.runtime.brokers import OAUTHBEARER, Brokers, KafkaSecurity

SECRET = "s3cret:/=;'"  # noqa: S105 - of a test


def test_brokers_without_security_need_no_option_but_their_address() -> None:
    assert spark_options("b:1") == {"kafka.bootstrap.servers": "b:1"}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER])
def test_options_name_the_file_and_not_the_secret(tmp_path: Path, mechanism: str) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"me:{SECRET}\n")
    url = "https://tokens" if mechanism == OAUTHBEARER else ""
    brokers = Brokers("b:1", KafkaSecurity("sasl_ssl", mechanism, str(file), url, ca="/ca"))  # type: ignore[arg-type]
    options = spark_options(brokers)
    assert options["kafka.sasl.mechanism"] == mechanism
    assert f'="${{file:{file}:me}}"' in options["kafka.sasl.jaas.config"]
    assert options["kafka.ssl.truststore.location"] == "/ca"
    assert SECRET not in str(options)


def test_a_file_that_java_clients_have_is_taken_whole(tmp_path: Path) -> None:
    file = tmp_path / "sasl.jaas.config"
    file.write_text(
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="m e" password="{SECRET}";'
    )
    options = spark_options(Brokers("b:1", KafkaSecurity("sasl_ssl", "SCRAM-SHA-512", str(file))))
    assert options["kafka.sasl.jaas.config"] == f"${{directory:{tmp_path}:sasl.jaas.config}}"
    assert SECRET not in str(options)
    with pytest.raises(ConfigurationError, match=r"kafka_sasl_mechanism PLAIN needs .*PlainLoginModule"):
        spark_options(Brokers("b:1", KafkaSecurity("sasl_ssl", "PLAIN", str(file))))


def test_a_certificate_and_its_key_are_taken_from_their_files() -> None:
    options = client_options(KafkaSecurity("ssl", certificate="/a/c.pem", key="/a/k.pem"), Credentials("", ""))
    assert options["ssl.keystore.certificate.chain"] == "${directory:/a:c.pem}"
    assert options["ssl.keystore.key"] == "${directory:/a:k.pem}"


@pytest.mark.parametrize(
    ("user", "password"),
    [("me", 'wq"x'), ("me", "wq\\x"), ("me", " wqx"), ("m e", "wqx"), ("#me", "wqx"), ("me", "wq\tx")],
)
def test_what_the_java_client_cannot_take_is_refused_unshown(user: str, password: str) -> None:
    with pytest.raises(ConfigurationError, match="log in with another one") as caught:
        client_options(KafkaSecurity("sasl_ssl", "PLAIN", "/credentials"), Credentials(user, password))
    assert password not in str(caught.value)


def test_paths_that_the_java_client_cannot_take_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="kafka_credentials /a:b"):
        client_options(KafkaSecurity("sasl_ssl", "PLAIN", "/a:b"), Credentials("me", "secret"))
