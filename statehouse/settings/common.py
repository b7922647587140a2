"""Settings that several processes have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, model_validator

from statehouse.runtime.brokers import Brokers, KafkaSecurity, RecordSecurity, SaslMechanism, SecurityProtocol
from statehouse.serdes.plugins import SerdeOptions
from statehouse.settings.declaration import DeclaredSettings, SettingGroup, setting

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda given: given.lower() if isinstance(given, str) else given),
]


SESSION_TIMEOUT_MAX_MS: Final = 600_000
"""A standby controller waits for so long at most before it takes over: it goes by the settings of the one before it,
which it reads in a topic."""


class TlsSettings(DeclaredSettings):
    """What a process needs that serves, or calls others, encrypted. The files are read anew when they change."""

    tls_certificate: Path | None = setting(
        None,
        "File with the process's certificate, and those between it and the CA's, in PEM. With one each port speaks TLS "
        "only, and the same certificate is shown to servers that are called.",
        SettingGroup.SECURITY,
        unset="none: nothing is encrypted",
    )
    tls_key: Path | None = setting(
        None,
        "File with the certificate's private key, in PEM, without a password.",
        SettingGroup.SECURITY,
        unset="none",
    )
    tls_ca: Path | None = setting(
        None,
        "File with the CA's certificates, in PEM, that callers and the servers that are called are checked with.",
        SettingGroup.SECURITY,
        unset="none: callers' certificates are not asked for",
    )
    tls_callers: Literal["none", "optional", "required"] | None = setting(
        None,
        "Whether callers show certificates. optional, for callers with tokens, needs the proxy.",
        SettingGroup.SECURITY,
        unset="required if there is a tls_ca, else none",
    )
    tls_crl: Path | None = setting(
        None,
        "File with the CA's lists of revoked certificates, in PEM.",
        SettingGroup.SECURITY,
        unset="none",
    )
    security_rules: Path | None = setting(
        None,
        "File with the rules: who may do what (docs/security.md). With one everything else is denied.",
        SettingGroup.SECURITY,
        unset="none: everybody may do everything",
    )
    drain_from_anywhere: bool = setting(
        False,
        "Take Drain from other machines, too, although nothing says who callers are. With security_rules, or where all "
        "callers show certificates, it is taken from wherever they are.",
        SettingGroup.SECURITY,
    )

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("tls_certificate and tls_key go together: give both or none")
        if self.tls_certificate is None:
            for name in ("tls_ca", "tls_callers", "tls_crl", "security_rules"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} does nothing without TLS: give tls_certificate and tls_key as well")
        if self.tls_ca is None:
            if self.tls_callers in {"optional", "required"}:
                raise ValueError("tls_callers checks certificates with those in tls_ca: give that, too")
            if self.tls_crl is not None:
                raise ValueError("tls_crl is checked with the certificates in tls_ca: give that, too")
        return self

    @property
    def callers_certificates(self) -> Literal["none", "optional", "required"]:
        """Whether callers show certificates."""
        if self.tls_callers is not None:
            return self.tls_callers
        return "none" if self.tls_ca is None else "required"


class NodeNameSettings(DeclaredSettings):
    """What a process needs that calls nodes."""

    tls_node_name: str = setting(
        "",
        "A name that all nodes' certificates have, to check in place of the host that a node advertises.",
        SettingGroup.SECURITY,
        unset="none: the advertised host",
    )


class KafkaSecuritySettings(DeclaredSettings):
    """How a process logs in to Kafka. Files are read whenever a client is made."""

    kafka_security_protocol: SecurityProtocol = setting(
        "plaintext",
        "How Kafka's brokers are spoken to: ssl encrypts, sasl_plaintext and sasl_ssl log in.",
        SettingGroup.KAFKA,
    )
    kafka_sasl_mechanism: SaslMechanism | None = setting(
        None,
        "How to log in, with one of the sasl protocols.",
        SettingGroup.KAFKA,
        unset="none",
    )
    kafka_credentials: Path | None = setting(
        None,
        "File with user:password, for OAUTHBEARER with client_id:client_secret; or with a sasl.jaas.config. On a Spark "
        "cluster each machine needs it, at this path.",
        SettingGroup.KAFKA,
        unset="none",
    )
    kafka_oauth_token_url: str = setting(
        "",
        "For OAUTHBEARER: where tokens are fetched.",
        SettingGroup.KAFKA,
        unset="none",
    )
    kafka_oauth_scope: str = setting(
        "",
        "For OAUTHBEARER: the scope to ask for.",
        SettingGroup.KAFKA,
        unset="none",
    )
    kafka_ca: Path | None = setting(
        None,
        "File with the certificates, in PEM, that the brokers' are checked with.",
        SettingGroup.KAFKA,
        unset="those that the system trusts",
    )
    kafka_certificate: Path | None = setting(
        None,
        "File with the certificate that brokers are shown, in PEM.",
        SettingGroup.KAFKA,
        unset="none",
    )
    kafka_key: Path | None = setting(
        None,
        "File with that certificate's private key, in PEM (PKCS #8), without a password.",
        SettingGroup.KAFKA,
        unset="none",
    )

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        if problem := self.kafka_security.problem():
            raise ValueError(problem)
        return self

    @property
    def kafka_security(self) -> KafkaSecurity:
        """The same as one value."""
        return KafkaSecurity(
            self.kafka_security_protocol,
            self.kafka_sasl_mechanism,
            _absolute(self.kafka_credentials),
            self.kafka_oauth_token_url,
            self.kafka_oauth_scope,
            _absolute(self.kafka_ca),
            _absolute(self.kafka_certificate),
            _absolute(self.kafka_key),
        )


class ListenSettings(TlsSettings):
    """What every process needs, also one that doesn't know Kafka."""

    bind_host: str = setting(
        "127.0.0.1",
        "Address to listen on. A processor serves only its metrics there.",
        SettingGroup.ADDRESS,
        min_length=1,
    )
    log_level: LogLevel = setting("info", "Least level that is logged.", SettingGroup.OBSERVABILITY)


class ProcessSettings(ListenSettings, KafkaSecuritySettings):
    """What every process of a fleet needs."""

    bootstrap: str = setting(
        "127.0.0.1:9092", "Kafka's bootstrap servers, as host:port,host:port.", SettingGroup.APPLICATION, min_length=1
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics; 0 takes a free one. Each further worker of a router has the next port.",
        SettingGroup.OBSERVABILITY,
        unset="none: metrics are not served",
        ge=0,
        le=65_535,
    )
    require_signed_records: bool = setting(
        False,
        "Refuse records of control topics that have no signature. Turn it on when each process of the application has "
        "tls_certificate and tls_ca, and none of a version that doesn't sign is left (docs/security.md).",
        SettingGroup.SECURITY,
    )

    @model_validator(mode="after")
    def _records_can_be_judged(self) -> Self:
        if self.require_signed_records and (self.tls_certificate is None or self.tls_ca is None):
            raise ValueError(
                "require_signed_records needs tls_certificate and tls_key, which records are signed with, and tls_ca, "
                "which they are judged by"
            )
        return self

    @property
    def brokers(self) -> Brokers:
        """What clients of Kafka are made with."""
        records = RecordSecurity(
            certificate=_path(self.tls_certificate),
            key=_path(self.tls_key),
            ca=_path(self.tls_ca),
            crl=_path(self.tls_crl),
            rules=_path(self.security_rules),
            is_signature_required=self.require_signed_records,
        )
        return Brokers(self.bootstrap, self.kafka_security, records)


def _path(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser())


KAFKA_SETTINGS: Final = ("bootstrap", *KafkaSecuritySettings.declared())
"""The settings of `ProcessSettings` by which Kafka is found, and logged in to."""


class SessionSettings(DeclaredSettings):
    """How long a silent node counts as alive."""

    session_timeout_ms: int = setting(
        10_000,
        "A node that is silent for this long loses its tasks. Set it alike on all processes. Kafka Streams has 45000.",
        SettingGroup.OWNERSHIP,
        ge=200,
        le=SESSION_TIMEOUT_MAX_MS,
    )


class RegistrySettings(DeclaredSettings):
    """What those need who read Avro and Protobuf."""

    schema_registry_timeout_ms: ClassVar[int] = 2_000
    """Longest wait for a schema: clients keep those they have, so a registry is asked once for each."""

    schema_registry_url: str = setting(
        "",
        "The schema registry, for the serdes avro and protobuf: an http(s) URL, or several separated by commas.",
        SettingGroup.REGISTRY,
        unset="none: such values are read raw only",
    )
    schema_registry_credentials: Path | None = setting(
        None,
        "File with user:password for the registry. It is read anew after a failed request.",
        SettingGroup.REGISTRY,
        unset="none",
    )
    schema_registry_ca: Path | None = setting(
        None,
        "File with the certificates that the registry's is checked with.",
        SettingGroup.REGISTRY,
        unset="those that the registry's client brings",
    )

    @model_validator(mode="after")
    def _url_is_one_and_has_no_password(self) -> Self:
        # Checked for the whole, because what a single setting is refused for is printed, and it may hold a password.
        for url in self.schema_registry_url.split(",") if self.schema_registry_url else ():
            if not url.strip().startswith(("http://", "https://")):
                raise ValueError("schema_registry_url must be http(s)://host:port, or several separated by commas")
            if "@" in url:
                raise ValueError(
                    "schema_registry_url is printed, so it can't hold a password: write user:password to a file and "
                    "name it in schema_registry_credentials"
                )
        return self

    @property
    def serde_options(self) -> SerdeOptions:
        """The same for serdes."""
        return SerdeOptions(
            self.schema_registry_url,
            _path(self.schema_registry_credentials),
            _path(self.schema_registry_ca),
            self.schema_registry_timeout_ms / 1000,
        )


def _absolute(file: Path | None) -> str:
    """Return a path that means the same in Spark's processes, which run elsewhere."""
    return "" if file is None else str(file.expanduser().absolute())


class HeartbeatPaceSettings(SessionSettings):
    """How often nodes report, and how long they may be silent."""

    heartbeat_interval_ms: int = setting(
        1_000,
        "How often a node sends a heartbeat. Set it alike on nodes and processor. An idle processor repeats "
        "its commit records as often. Kafka Streams has 3000.",
        SettingGroup.OWNERSHIP,
        ge=50,
    )

    @model_validator(mode="after")
    def _session_outlives_heartbeats(self) -> Self:
        if self.session_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ValueError(
                "session_timeout_ms must be at least 3 x heartbeat_interval_ms, or one late heartbeat makes a live "
                "node count as dead: raise the first or lower the second"
            )
        return self


class ApplicationIdSettings(ProcessSettings):
    """What processes need that don't run the application's code: that code names the application's id itself."""

    application_id: str = setting(
        ...,
        "Id of the application; its changelogs and control topics have it in their names.",
        SettingGroup.APPLICATION,
    )


class ApplicationSettings(ApplicationIdSettings, SessionSettings):
    """What processes need that serve an application, or look at it."""


class CallSettings(DeclaredSettings):
    """Bounds of what callers may ask, alike for gRPC and HTTP."""

    max_timeout_ms: ClassVar[int] = 60_000
    """Longest time of a request, whatever its caller's deadline: no place is held longer. Watches have no bound."""

    max_connections: int = setting(
        10_000,
        "Most open connections; further ones are closed.",
        SettingGroup.ADDRESS,
        ge=1,
    )
    max_connections_per_address: int | None = setting(
        None,
        "The same for one address, where a proxy serves, and at the HTTP port: grpcio can't. Callers behind a load "
        "balancer share its address.",
        SettingGroup.ADDRESS,
        unset="as many as are left for others",
        ge=1,
    )
    max_message_bytes: int = setting(
        16 * 1024 * 1024,
        "Largest gRPC message. Set it alike on clients, routers and nodes.",
        SettingGroup.ADDRESS,
        ge=65_536,
    )


class ServerSettings(ApplicationSettings, CallSettings):
    """What every process that serves lookups needs."""

    max_connection_age_ms: ClassVar[int] = 600_000
    """With TLS, a connection's age at which it is closed in order: so long may a revoked certificate be used."""

    proxy: str = setting(
        "auto",
        "The program that serves gRPC in front of the process: auto takes statehouse-proxy from PATH if it is there, "
        "none serves without one, anything else is its path.",
        SettingGroup.ADDRESS,
        min_length=1,
    )

    lookup_log_sample: float = setting(
        0,
        "Share of the lookups that the log has a line of, apart from failed ones. Lookups on the express way are in "
        "nodes' logs only.",
        SettingGroup.OBSERVABILITY,
        ge=0,
        le=1,
    )

    @property
    def lookup_log_keys(self) -> bool:
        """Whether lines about lookups have their keys, which may say who somebody is: for debugging."""
        return self.log_level == "debug"

    @property
    def max_held_bytes(self) -> int:
        """Bytes of large requests on their way through the proxy: four of the largest. Further ones wait."""
        return 4 * self.max_message_bytes
