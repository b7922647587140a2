"""How librdkafka logs in. The one place that reads secrets: they go from their file to the client, and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from statehouse.errors import ConfigurationError
from statehouse.runtime.brokers import OAUTHBEARER, KafkaSecurity
from statehouse.runtime.file_reads import PEM_BYTES_MAX, SECRET_BYTES_MAX, check, read

# What Kafka's Java clients take as sasl.jaas.config, and Strimzi writes into a KafkaUser's Secret.
_JAAS: Final = re.compile(r"(?P<module>[\w.]+LoginModule)\s+required\s+(?P<options>.*);", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What to log in with; prints the user only. `module`: the login module that a JAAS file names."""

    user: str
    password: str = field(repr=False)
    module: str = ""


def read_credentials(path: str) -> Credentials:
    """Read a file with user:password, or with a `sasl.jaas.config` as Kafka's Java clients have it.

    Raises:
        ConfigurationError: it can't be read, or has another form.

    """
    try:
        text = read(Path(path), SECRET_BYTES_MAX).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        # A decoder's error has the file's content in it.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"kafka_credentials {path} can't be read: {reason}") from None
    if jaas := _JAAS.fullmatch(text):
        return _of_jaas(path, jaas["module"], jaas["options"])
    user, colon, password = text.partition(":")
    if not (user and colon and password) or len(text.splitlines()) != 1:
        raise ConfigurationError(
            f"kafka_credentials {path} must hold one line, user:password, or a sasl.jaas.config: "
            '...LoginModule required username="..." password="...";'
        )
    return Credentials(user, password)


def _of_jaas(path: str, module: str, text: str) -> Credentials:
    options = {name: re.sub(r"\\(.)", r"\1", value) for name, value in _JAAS_OPTION.findall(text)}
    user = options.get("username") or options.get("clientId")
    password = options.get("password") or options.get("clientSecret")
    if not (user and password):
        raise ConfigurationError(
            f"kafka_credentials {path} is a sasl.jaas.config without username and password, in double quotes"
        )
    return Credentials(user, password, module)


def client_options(security: KafkaSecurity) -> dict[str, str]:
    """Return librdkafka's settings, the secret among them: for a client, not to be kept.

    Raises:
        ConfigurationError: a file can't be read.

    """
    options: dict[str, str] = {"security.protocol": security.protocol}
    if security.is_encrypted:
        options |= _ssl_options(security)
    if security.has_login:
        options["sasl.mechanisms"] = str(security.mechanism)
        options |= _login_options(security, read_credentials(security.credentials))
    return options


def _ssl_options(security: KafkaSecurity) -> dict[str, str]:
    files = {
        ("kafka_ca", "ssl.ca.location"): security.ca,
        ("kafka_certificate", "ssl.certificate.location"): security.certificate,
        ("kafka_key", "ssl.key.location"): security.key,
    }
    for (name, _option), path in files.items():
        # The client would say it in OpenSSL's words, or wait for ever.
        if path:
            try:
                check(Path(path), PEM_BYTES_MAX)
            except OSError as error:
                raise ConfigurationError(f"{name} {path} is not a file that can be read: {error.strerror}") from None
    return {option: path for (_name, option), path in files.items() if path}


def _login_options(security: KafkaSecurity, credentials: Credentials) -> dict[str, str]:
    if security.mechanism != OAUTHBEARER:
        return {"sasl.username": credentials.user, "sasl.password": credentials.password}
    options = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": security.oauth_token_url,
        "sasl.oauthbearer.client.id": credentials.user,
        "sasl.oauthbearer.client.secret": credentials.password,
    }
    if security.oauth_scope:
        options["sasl.oauthbearer.scope"] = security.oauth_scope
    # librdkafka fetches tokens with libcurl, which has a CA store of its own.
    if security.ca and security.oauth_token_url.startswith("https://"):
        options["https.ca.location"] = security.ca
    return options
