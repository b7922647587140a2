"""Settings that several processes have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, model_validator

from statehouse.serde_plugins import SerdeOptions
from statehouse.settings.declaration import DeclaredSettings, SettingGroup, setting

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    BeforeValidator(lambda given: given.lower() if isinstance(given, str) else given),
]


class ProcessSettings(DeclaredSettings):
    """What every process needs."""

    bootstrap: str = setting(
        "127.0.0.1:9092", "Kafka's bootstrap servers, as host:port,host:port.", SettingGroup.APPLICATION, min_length=1
    )
    bind_host: str = setting(
        "127.0.0.1",
        "Address to listen on. A processor serves only its metrics there.",
        SettingGroup.ADDRESS,
        min_length=1,
    )
    metrics_port: int | None = setting(
        None,
        "Port of /metrics; 0 takes a free one. Each further worker of a router has the next port.",
        SettingGroup.OBSERVABILITY,
        unset="none: metrics are not served",
        ge=0,
        le=65_535,
    )
    log_level: LogLevel = setting("info", "Least level that is logged.", SettingGroup.OBSERVABILITY)


class CommonSettings(ProcessSettings):
    """What every process needs but a standby controller, which takes it from the controller before it."""

    session_timeout_ms: int = setting(
        10_000,
        "A node that is silent for this long loses its tasks. Set it alike on all processes. Kafka Streams has 45000.",
        SettingGroup.OWNERSHIP,
        ge=200,
    )


class RegistrySettings(DeclaredSettings):
    """What those need who read Avro and Protobuf."""

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
    schema_registry_timeout_ms: int = setting(
        2_000,
        "Longest time that a read waits for a schema that this process does not know yet.",
        SettingGroup.REGISTRY,
        ge=1,
        le=60_000,
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


def _path(file: Path | None) -> str:
    return "" if file is None else str(file.expanduser())


class HeartbeatSettings(CommonSettings):
    """What nodes need, and the processor, which follows their heartbeats."""

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


class ApplicationSettings(CommonSettings, ApplicationIdSettings):
    """What processes need that serve an application, or look at it."""


class ServerSettings(ApplicationSettings):
    """What every process that serves lookups needs."""

    proxy: str = setting(
        "auto",
        "The program that serves gRPC in front of the process: auto takes statehouse-proxy from PATH if it is there, "
        "none serves without one, anything else is its path.",
        SettingGroup.ADDRESS,
        min_length=1,
    )
    max_connections: int = setting(
        10_000,
        "Most connections at once; further ones are closed. Only where a proxy serves: grpcio can't bound them.",
        SettingGroup.ADDRESS,
        ge=1,
    )
    max_connections_per_address: int | None = setting(
        None,
        "The same for one address. Callers behind a load balancer share its address.",
        SettingGroup.ADDRESS,
        unset="max_connections",
        ge=1,
    )
    max_timeout_ms: int = setting(
        60_000,
        "Longest time that a request may take, whatever deadline its caller gives. Watches have no bound.",
        SettingGroup.ADDRESS,
        ge=1_000,
    )
    max_message_bytes: int = setting(
        16 * 1024 * 1024,
        "Largest gRPC message. Set it alike on clients, routers and nodes.",
        SettingGroup.ADDRESS,
        ge=65_536,
    )
