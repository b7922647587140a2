"""Settings: one schema for flags, environment (`STATEHOUSE_…`) and a TOML file, validated at start.

Precedence: flag, environment, the file that `STATEHOUSE_CONFIG` names, default. Keys are flat and mean the
same in every process, so that one file can configure a whole fleet.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from statehouse.errors import ConfigurationError

ENV_PREFIX = "STATEHOUSE_"
CONFIG_ENV = f"{ENV_PREFIX}CONFIG"


class _TomlSource(PydanticBaseSettingsSource):
    """The keys of the TOML file that concern a class of settings."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:  # noqa: ANN401, ARG002
        return _file_values().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return {key: value for key, value in _file_values().items() if key in self.settings_cls.model_fields}


def _file_values() -> dict[str, Any]:
    path = os.environ.get(CONFIG_ENV)
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{CONFIG_ENV}={path} can't be read: {error}") from error


class CommonSettings(BaseSettings):
    """What every process needs."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True)

    bootstrap: str = Field("127.0.0.1:9092", description="Kafka bootstrap servers, host:port[,host:port]")
    application_id: str = Field(description="application id; names the changelogs and the control topics")
    heartbeat_interval_ms: int = Field(1_000, ge=50, description="how often a node writes to the members topic")
    session_timeout_ms: int = Field(
        10_000, ge=200, description="a node silent for this long loses its tasks; Kafka Streams has 45,000"
    )
    max_message_bytes: int = Field(
        16 * 1024 * 1024, ge=65_536, description="largest gRPC message; set it alike on clients, routers and nodes"
    )
    log_level: str = Field("INFO", pattern="(?i)^(debug|info|warning|error)$", description="least level logged")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no dotenv files
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - no secret files
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Put the file behind the environment."""
        return init_settings, env_settings, _TomlSource(settings_cls)

    @model_validator(mode="after")
    def _session_outlives_heartbeats(self) -> Self:
        if self.session_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ValueError(
                "session_timeout_ms must be at least 3 x heartbeat_interval_ms, or one late heartbeat costs a "
                "rebalance: raise the first or lower the second"
            )
        return self


class ServerSettings(CommonSettings):
    """What every process that serves lookups needs."""

    proxy: str = Field(
        "auto",
        min_length=1,
        description="the program that serves gRPC in front of the process: auto takes statehouse-proxy from PATH, if "
        "it is there, none serves without one, else its path",
    )


class NodeSettings(ServerSettings):
    """A query node."""

    instance_id: str = Field(
        "",
        description="the node's stable name; a restart under it keeps the node's tasks. Without one the node is a "
        "dynamic member: a name is made up for this run, and its tasks move when it leaves",
    )
    bind_host: str = Field("127.0.0.1", description="address to listen on")
    node_port: int = Field(7101, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    advertised_host: str = Field("", description="address others reach the node at; default: bind_host")
    advertised_port: int = Field(0, ge=0, le=65_535, description="port others reach the node at; default: node_port")
    rack: str = Field("", description="rack; standbys are spread over racks")
    capacity: int = Field(
        1, ge=1, le=1_000, description="weight of the node's share of the tasks; at 2 it holds twice what others do"
    )
    state_dir: Path = Field(Path("~/.local/share/statehouse/state"), description="where state is kept")
    confirm_interval_ms: int = Field(
        250, ge=20, description="how often the node asks the broker for the ends; the floor of reported staleness"
    )
    drain_timeout_ms: int = Field(
        10_000, ge=0, description="longest wait for the hand-over of active tasks at SIGTERM; SIGINT stops at once"
    )
    block_cache_bytes: int = Field(
        256 * 1024 * 1024,
        ge=8 * 1024 * 1024,
        description="memory of RocksDB over all stores: blocks, filters, memtables; Kafka Streams has 50 MiB a store",
    )
    write_buffer_bytes: int = Field(
        64 * 1024 * 1024,
        ge=4 * 1024 * 1024,
        description="the part of block_cache_bytes for memtables; Kafka Streams has up to 48 MiB a store",
    )
    memory_store_max_bytes: int = Field(
        64 * 1024 * 1024,
        ge=1024,
        description="byte budget of one partition of an in-memory store; beyond it its task stops",
    )
    state_cleanup_delay_ms: int = Field(
        600_000,
        ge=0,
        description="how long the state of a task that is no longer the node's is kept; Kafka Streams has 600,000",
    )
    restore_batch_records: int = Field(
        250, ge=1, description="records read and written at once in a restore; Kafka Streams has 1,000"
    )
    max_batch_entries: int = Field(1_000, ge=1, description="most lookups in one BatchGet")
    max_open_scans: int = Field(
        64, ge=1, description="most scans, exact counts and pages read at once; Kafka Streams has no bound"
    )
    scan_timeout_ms: int = Field(
        30_000, ge=1, description="longest that one of them may read; Kafka Streams has no bound"
    )
    max_position_waits: int = Field(
        1_000,
        ge=0,
        description="most requests that wait at once for a position they must see; further ones are refused",
    )
    position_wait_timeout_ms: int = Field(
        5_000, ge=0, description="longest such wait of a request without a deadline of its own"
    )
    max_watches: int = Field(1_000, ge=0, description="most watches at once; a router's of many partitions count each")
    watch_tail_bytes: int = Field(
        1024 * 1024,
        ge=0,
        description="latest changes kept in memory per store partition; with 0 watches read the log for each change",
    )
    metrics_port: int | None = Field(None, ge=0, le=65_535, description="port of /metrics; unset serves none")

    @model_validator(mode="after")
    def _memtables_leave_room_for_blocks(self) -> Self:
        if self.write_buffer_bytes > self.block_cache_bytes // 2:
            raise ValueError(
                "write_buffer_bytes is charged to block_cache_bytes and may take half of it at most: lower the first "
                "or raise the second, or there is no room for blocks"
            )
        return self

    @model_validator(mode="after")
    def _lag_stays_known(self) -> Self:
        if self.session_timeout_ms < 3 * self.confirm_interval_ms:
            raise ValueError(
                "session_timeout_ms must be at least 3 x confirm_interval_ms, or one late answer of the broker makes "
                "every lag unknown: raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _address_can_be_advertised(self) -> Self:
        if not self.advertised_host and self.bind_host in {"0.0.0.0", "::", "[::]"}:  # noqa: S104 - refused, not bound
            raise ValueError(f"bind_host {self.bind_host} is no address others can call: set advertised_host")
        return self


class RouterSettings(ServerSettings):
    """A router."""

    bind_host: str = Field("127.0.0.1", description="address to listen on")
    router_port: int = Field(7100, ge=0, le=65_535, description="port to listen on; 0 takes a free one")
    workers: int = Field(
        1, ge=1, le=64, description="processes that share the port; each has the bounds below for itself"
    )
    request_timeout_ms: int = Field(5_000, ge=1, description="longest a request without a deadline of its own may take")
    attempt_timeout_ms: int = Field(
        250, ge=1, description="a candidate that has not answered by then is passed over for the next"
    )
    hedge_quantile: float = Field(
        0.95, gt=0, lt=1, description="a lookup slower than this share of its kind is sent to a second replica, too"
    )
    hedge_min_ms: int = Field(
        10, ge=0, description="but not before; from attempt_timeout_ms on no second replica is asked"
    )
    retry_budget_percent: float = Field(
        10, ge=0, le=100, description="most hedges and retries per 100 lookups, beside 5 a second"
    )
    max_lookups: int = Field(
        2_000, ge=1, description="most lookups at once, each of a batch counted; further ones are refused"
    )
    max_watches: int = Field(1_000, ge=0, description="most watches at once, of stores and of the fleet each")
    watch_resume_timeout_ms: int = Field(
        60_000, ge=1, description="longest a watch waits for a replica that can go on where the last one broke off"
    )
    hold_window_ms: int = Field(
        0, ge=0, description="longest that lookups are held which nobody can answer yet; 0 fails them at once"
    )
    hold_max: int = Field(1_000, ge=1, description="most lookups held at once")
    hold_min_interval_ms: int = Field(
        60_000, ge=0, description="least time from the end of a partition's window to its next one"
    )
    hold_dry_run: bool = Field(False, description="hold nothing, only count what would have been held")
    router_rack: str = Field(
        "", description="the router's rack: bounded reads that any replica may answer are asked there first"
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65_535, description="port of /metrics; unset serves none; each further worker has the next port"
    )

    @model_validator(mode="after")
    def _workers_have_metrics_ports(self) -> Self:
        if self.metrics_port and self.metrics_port + self.workers - 1 > 65_535:
            raise ValueError(
                "each worker serves metrics on a port of its own, from metrics_port on: choose a lower one"
            )
        return self


class ProcessSettings(CommonSettings):
    """The Spark application's driver."""

    application_id: str = Field("", description="the application's own code says it; only the others need it")
    checkpoint_dir: str = Field(
        "~/.local/share/statehouse/checkpoints", description="Spark's checkpoints, on any Hadoop file system"
    )
    accept_lost_checkpoint: bool = Field(
        False, description="begin anew over changelogs whose checkpoint is gone, instead of refusing to start"
    )
    commit_interval_ms: int = Field(
        0,
        ge=0,
        description="micro-batch trigger; 0 starts a batch as soon as the last is done. Kafka Streams has 30,000",
    )
    max_offsets: int = Field(20_000, ge=1, description="events a batch reads at most of each stream")
    shuffle_partitions: int = Field(2, ge=1, description="tasks of a stateful stage, fixed at the first start")
    sink_tasks: int = Field(1, ge=1, description="tasks that write a batch to Kafka, on as many executors at most")
    spark_master: str | None = Field(None, description="Spark master; default local[*], or spark-submit's")
    replication_factor: int = Field(-1, ge=-1, description="of the topics we create; -1 is the broker's default")
    changelog_additional_retention_ms: int = Field(
        86_400_000,
        ge=0,
        description="kept in window and session changelogs beyond the store's retention; Kafka Streams has 86,400,000",
    )
    updates_retention_ms: int = Field(
        600_000, ge=1, description="how long the topics of ephemeral stores keep their updates"
    )
    num_standby_replicas: int = Field(1, ge=0, description="standbys per task; Kafka Streams has 0")
    acceptable_recovery_lag: int = Field(
        10_000, ge=0, description="a replica within this many records is caught up; Kafka Streams has 10,000"
    )
    max_warmup_replicas: int = Field(2, ge=1, description="warm-ups at once; Kafka Streams has 2")
    handover_linger_ms: int | None = Field(
        None, ge=0, description="how long a replaced replica stays; default: 2 x heartbeat_interval_ms"
    )
    initial_rebalance_delay_ms: int = Field(
        1_000, ge=0, description="wait after the first node joins an application without an assignment"
    )
    flap_limit: int = Field(
        3,
        ge=1,
        description="a node that restarted or was lost more often than this within flap_window_ms gets nothing new "
        "until it has been steady; Kafka Streams has no such limit",
    )
    flap_window_ms: int = Field(
        600_000, ge=1, description="how long that is remembered, and the longest a node has to be steady for"
    )
    max_query_restarts: int = Field(
        5,
        ge=0,
        description="restarts of a query that died, within query_restart_window_ms or without a batch in between, "
        "before the process ends; Kafka Streams shuts down at the first failure, unless a handler says otherwise",
    )
    query_restart_window_ms: int = Field(600_000, ge=1, description="how long a query's death is remembered")
    query_restart_backoff_ms: int = Field(
        1_000, ge=1, description="pause before a query's first restart; doubles with each death remembered"
    )
    query_restart_backoff_max_ms: int = Field(30_000, ge=1, description="longest pause before a query's restart")
    source_wait_ms: int = Field(60_000, ge=0, description="longest wait for source topics at the start")
    bind_host: str = Field("127.0.0.1", description="address that /metrics is served on")
    metrics_port: int | None = Field(None, ge=0, le=65_535, description="port of /metrics; unset serves none")


Settings = TypeVar("Settings", bound=CommonSettings)


def load(cls: type[Settings], flags: dict[str, Any]) -> Settings:
    """Return the settings; flags that are None were not given.

    Raises:
        ConfigurationError: a value is missing or wrong; names the field, its flag and its variable.

    """
    try:
        return cls(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            field = ".".join(map(str, problem["loc"]))
            message = problem["msg"].removeprefix("Value error, ")
            hint = f"{field} (--{field.replace('_', '-')}, {ENV_PREFIX}{field.upper()}): " if field else ""
            problems.append(f"{hint}{message}")
        raise ConfigurationError("; ".join(problems)) from error


def sources(settings: CommonSettings, flags: dict[str, Any]) -> list[tuple[str, Any, str]]:
    """Return (name, value, source) of every setting, source being flag, environment, file or default."""
    from_file = _file_values()
    rows = []
    for name in type(settings).model_fields:
        if flags.get(name) is not None:
            source = "flag"
        elif f"{ENV_PREFIX}{name.upper()}" in os.environ:
            source = "environment"
        else:
            source = "file" if name in from_file else "default"
        rows.append((name, getattr(settings, name), source))
    return rows
