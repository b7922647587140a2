"""Where Kafka's brokers are and how clients log in to them, as values. The secrets themselves stay in their files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

SecurityProtocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
OAUTHBEARER: Final[SaslMechanism] = "OAUTHBEARER"


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """How clients encrypt and log in: names and paths of files, no secret. So it may be printed, pickled and sent."""

    protocol: SecurityProtocol = "plaintext"
    mechanism: SaslMechanism | None = None
    """None if nobody logs in by SASL."""
    credentials: str = ""
    """File with user:password, or client_id:client_secret."""
    oauth_token_url: str = ""
    oauth_scope: str = ""
    ca: str = ""
    """File with the certificates that the brokers' are checked with; empty: the system's."""
    certificate: str = ""
    key: str = ""

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol in {"ssl", "sasl_ssl"}

    @property
    def has_login(self) -> bool:
        """Whether clients log in by SASL."""
        return self.protocol in {"sasl_plaintext", "sasl_ssl"}

    def problem(self) -> str:
        """Return why this can't work, as a sentence that names the settings; empty if it can."""
        return self._sasl_problem() or self._oauth_problem() or self._tls_problem()

    def _sasl_problem(self) -> str:
        if self.has_login:
            if self.mechanism is None:
                choices = ", ".join(get_args(SaslMechanism))
                return f"kafka_security_protocol {self.protocol} needs a kafka_sasl_mechanism: one of {choices}"
            if not self.credentials:
                return f"kafka_security_protocol {self.protocol} needs kafka_credentials, a file with user:password"
            return ""
        for name, value in (("kafka_sasl_mechanism", self.mechanism), ("kafka_credentials", self.credentials)):
            if value:
                return (
                    f"{name} does nothing with kafka_security_protocol {self.protocol}: set that to sasl_ssl, or to "
                    "sasl_plaintext where the network is trusted"
                )
        return ""

    def _oauth_problem(self) -> str:
        if self.mechanism == OAUTHBEARER:
            if not self.oauth_token_url.startswith(("http://", "https://")):
                return "kafka_sasl_mechanism OAUTHBEARER needs kafka_oauth_token_url, as http(s)://host/path"
            # Settings are printed.
            if "@" in self.oauth_token_url:
                return (
                    "kafka_oauth_token_url is printed, so it can't hold a password: that belongs to kafka_credentials"
                )
            return ""
        for name, value in (("kafka_oauth_token_url", self.oauth_token_url), ("kafka_oauth_scope", self.oauth_scope)):
            if value:
                return f"{name} does nothing without kafka_sasl_mechanism OAUTHBEARER"
        return ""

    def _tls_problem(self) -> str:
        if bool(self.certificate) != bool(self.key):
            return "kafka_certificate and kafka_key go together: give both or none"
        if self.is_encrypted:
            return ""
        for name, value in (("kafka_ca", self.ca), ("kafka_certificate", self.certificate)):
            if value:
                return f"{name} does nothing with kafka_security_protocol {self.protocol}: set that to ssl or sasl_ssl"
        return ""


PLAINTEXT: Final = KafkaSecurity()


@dataclass(frozen=True, slots=True)
class RecordSecurity:
    """What records of control topics are signed and judged with: paths of files, no secret.

    A process signs with its certificate, and judges if it has a CA as well.
    """

    certificate: str = ""
    key: str = ""
    ca: str = ""
    crl: str = ""
    rules: str = ""
    is_signature_required: bool = False

    @property
    def judges(self) -> bool:
        """Whether records are judged."""
        return bool(self.certificate and self.ca)


UNSIGNED: Final = RecordSecurity()


@dataclass(frozen=True, slots=True)
class Brokers:
    """What a client of Kafka is made with."""

    bootstrap: str
    """host:port, or several separated by commas."""
    security: KafkaSecurity = PLAINTEXT
    records: RecordSecurity = UNSIGNED

    @classmethod
    def of(cls, given: Brokers | str) -> Brokers:
        """Return the brokers that are meant; mere addresses are of brokers without security."""
        return cls(given) if isinstance(given, str) else given

    def __str__(self) -> str:
        return self.bootstrap
