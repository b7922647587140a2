"""How Spark's Kafka sources log in, without a secret in their options: plans and event logs show options.

Kafka's Java client replaces ${file:PATH:KEY} in an option by what the file has under the key, where the client is made:
in the driver and in each executor. The file of credentials, user:password, is such a file: the key is the user. If a
file is a sasl.jaas.config already, ${directory:FOLDER:FILE} stands for all of it.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Final

from statehouse.errors import ConfigurationError
from statehouse.kafka.security import Credentials, read_credentials
from statehouse.runtime.brokers import OAUTHBEARER, Brokers, KafkaSecurity

_PROVIDERS: Final = "org.apache.kafka.common.config.provider"
_MODULES: Final = "org.apache.kafka.common.security"
_LOGIN_MODULES: Final = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
    OAUTHBEARER: f"{_MODULES}.oauthbearer.OAuthBearerLoginModule",
}
# The file is read as Java's properties, and the value put between quotes: what these give a meaning can't be there.
_USER: Final = re.compile(r'[^\s:=#!\\"{}$]+')
_PASSWORD: Final = re.compile(r'[^\s"\\]([^"\\\x00-\x1f]*)')
_PATH: Final = re.compile(r"[^:}\n]*")


def spark_options(brokers: Brokers | str) -> dict[str, str]:
    """Return the options of a Kafka source that name the brokers and the login; raises as `java_client_options`."""
    return {f"kafka.{name}": value for name, value in java_client_options(brokers).items()}


def java_client_options(brokers: Brokers | str) -> dict[str, str]:
    """Return the options of a client in Java that name the brokers and the login.

    Raises:
        ConfigurationError: the file of credentials can't be read, or has characters that the client can't take.

    """
    brokers = Brokers.of(brokers)
    security = brokers.security
    credentials = read_credentials(security.credentials) if security.has_login else Credentials("", "")
    return {"bootstrap.servers": brokers.bootstrap, **client_options(security, credentials)}


def topic_options(brokers: Brokers | str, topic: str) -> dict[str, str]:
    """Return the options of a Kafka source that reads a topic from its start; raises as `spark_options` does."""
    return {
        **spark_options(brokers),
        "subscribe": topic,
        "startingOffsets": "earliest",
        # Skip the records of aborted transactions.
        "kafka.isolation.level": "read_committed",
        # The client fetches ahead, and the broker answers a connection's requests one after the other: what is asked
        # next would wait for records with the fetch, half a second by default.
        "kafka.fetch.max.wait.ms": "0",
    }


def client_options(security: KafkaSecurity, credentials: Credentials) -> dict[str, str]:
    """Return the settings of Kafka's Java client; they have the paths of secrets.

    Raises:
        ConfigurationError: credentials or paths have characters that the client can't take.

    """
    if security == KafkaSecurity():
        return {}
    options = {
        "security.protocol": security.protocol.upper(),
        "config.providers": "file,directory",
        "config.providers.file.class": f"{_PROVIDERS}.FileConfigProvider",
        "config.providers.directory.class": f"{_PROVIDERS}.DirectoryConfigProvider",
    }
    if security.ca:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca}
    if security.certificate:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _content("kafka_certificate", security.certificate),
            "ssl.keystore.key": _content("kafka_key", security.key),
        }
    if security.has_login:
        options |= _login_options(security, credentials)
    return options


def _login_options(security: KafkaSecurity, credentials: Credentials) -> dict[str, str]:
    mechanism = str(security.mechanism)
    options = {"sasl.mechanism": mechanism}
    if mechanism == OAUTHBEARER:
        options["sasl.oauthbearer.token.endpoint.url"] = security.oauth_token_url
        options["sasl.login.callback.handler.class"] = f"{_MODULES}.oauthbearer.OAuthBearerLoginCallbackHandler"
    return options | {"sasl.jaas.config": _jaas(security, credentials, mechanism)}


def _jaas(security: KafkaSecurity, credentials: Credentials, mechanism: str) -> str:
    if credentials.module:
        if credentials.module != _LOGIN_MODULES[mechanism]:
            raise ConfigurationError(
                f"kafka_credentials {security.credentials} is for {credentials.module}, and kafka_sasl_mechanism "
                f"{mechanism} needs {_LOGIN_MODULES[mechanism]}"
            )
        return _content("kafka_credentials", security.credentials)
    if not (_USER.fullmatch(credentials.user) and _PASSWORD.fullmatch(credentials.password)):
        raise ConfigurationError(
            f"kafka_credentials {security.credentials}: Kafka's Java client, which Spark reads with, can't take "
            "quotes, backslashes or control characters in a password, a blank at its start, or any of these, blanks "
            "and =#!{}$ in a user's name: log in with another one"
        )
    _check_path("kafka_credentials", security.credentials)
    names = ("clientId", "clientSecret") if mechanism == OAUTHBEARER else ("username", "password")
    secret = f"${{file:{security.credentials}:{credentials.user}}}"
    words = [f'{names[0]}="{credentials.user}"', f'{names[1]}="{secret}"']
    if mechanism == OAUTHBEARER and security.oauth_scope:
        words.append(f'scope="{security.oauth_scope}"')
    return f"{_LOGIN_MODULES[mechanism]} required {' '.join(words)};"


def _content(name: str, path: str) -> str:
    _check_path(name, path)
    file = PurePosixPath(path)
    return f"${{directory:{file.parent}:{file.name}}}"


def _check_path(name: str, path: str) -> None:
    if not _PATH.fullmatch(path):
        raise ConfigurationError(f"{name} {path}: Kafka's Java client can't take a path with : or }} in it")
