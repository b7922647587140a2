"""The settings of a processor: the driver of a Spark application."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import field_validator

from statehouse.errors.checked import COUNT_MAX, HOLDERS_MAX, PARTITIONS_OF_ALL_MAX
from statehouse.settings.common import (
    ApplicationIdSettings,
    ApplicationSettings,
    HeartbeatPaceSettings,
    ProcessSettings,
    RegistrySettings,
)
from statehouse.settings.declaration import DeclaredSettings, SettingGroup, setting

_DAY_MS = 86_400_000


class ClassArchiveSettings(DeclaredSettings):
    """What decides about the archive of Spark's classes."""

    class_archive: bool = setting(
        True,
        "Start the JVM of Spark's driver from an archive of its classes, if there is one for this Java and this Spark "
        "(docs/processor.md).",
        SettingGroup.SPARK,
    )


class PlanningSettings(HeartbeatPaceSettings):
    """What an ownership controller plans by."""

    initial_rebalance_delay_ms: ClassVar[int] = 1_000
    """How long the first plan waits for more nodes, so that a fleet that starts together is planned once."""
    flap_limit: ClassVar[int] = 3
    """A node that restarted or was lost more often than this within flap_window_ms gets nothing new until it has been
    steady. Kafka Streams has no such limit."""
    num_standby_replicas: int = setting(
        1,
        "Copies of a task in addition to the active. With none, a lost node's partitions are unreadable until they are "
        "restored elsewhere. Kafka Streams has 0.",
        SettingGroup.OWNERSHIP,
        ge=0,
        le=HOLDERS_MAX,
    )
    acceptable_recovery_lag: int = setting(
        10_000,
        "A replica that is at most so many records behind is caught up. Kafka Streams has 10000.",
        SettingGroup.OWNERSHIP,
        ge=0,
        le=COUNT_MAX,
    )
    max_warmup_replicas: int = setting(
        2,
        "Replicas that are built together for moves that nothing forced. Bounds what a rebalance costs the brokers. "
        "Kafka Streams has 2.",
        SettingGroup.OWNERSHIP,
        ge=1,
        le=PARTITIONS_OF_ALL_MAX,
    )

    early_promotions_max: int = setting(
        20,
        "Nodes that may lose their actives within 10 minutes before their session timeout, because their addresses "
        "refuse all connections. 0 turns it off.",
        SettingGroup.OWNERSHIP,
        ge=0,
        le=1_000,
    )

    @property
    def flap_window_ms(self) -> int:
        """How long restarts and losses of a node are remembered; also the longest time that it must be steady."""
        return max(600_000, self.session_timeout_ms)

    @property
    def handover_linger_ms(self) -> int:
        """How long a replaced replica goes on answering: until everybody has heard of the new one."""
        return 2 * self.heartbeat_interval_ms


class ProcessorSettings(ProcessSettings, PlanningSettings, RegistrySettings, ClassArchiveSettings):
    """A processor. Spark's own settings pass through `spark_conf`."""

    max_batch_ms: ClassVar[int] = 5_000
    """How long a batch of a backlog may take: each start chooses max_offsets by it and the rate of the last run."""
    write_timeout_ms: ClassVar[int] = 60_000
    """How long a task tries to write its part of a batch before Spark runs it again: a broker's restart is shorter."""
    transaction_timeout_ms: ClassVar[int] = 60_000
    """How long the transaction of a task that hangs may hold readers back: Kafka's own default."""
    min_compaction_lag_ms: ClassVar[int] = 600_000
    """How long records of a changelog stay uncompacted, so that a watch can resume. A store's config has its own."""
    changelog_additional_retention_ms: ClassVar[int] = _DAY_MS
    """How long changelogs of windows and sessions are kept beyond the store's retention: as Kafka Streams does."""
    updates_retention_ms: ClassVar[int] = 600_000
    """How long the topics of ephemeral stores keep their updates. A store's config has its own."""
    max_query_restarts: ClassVar[int] = 5
    """Restarts of a query within the window, or without a batch in between: one that still dies has a defect."""
    query_restart_window_ms: ClassVar[int] = 600_000
    """How long a query's death is remembered."""
    query_restart_backoff_ms: ClassVar[int] = 1_000
    """Pause before a query's first restart; doubles with each death remembered."""
    query_restart_backoff_max_ms: ClassVar[int] = 30_000
    """Longest pause before a query's restart."""
    shuffle_partitions: ClassVar[int] = 2
    """Tasks of a stateful stage, fixed at a query's first start; spark_conf can say otherwise."""

    checkpoint_dir: str = setting(
        "~/.local/share/statehouse/checkpoints",
        "Directory of Spark's checkpoints, on any Hadoop file system. Without it a restart would process everything "
        "again.",
        SettingGroup.BATCHES,
        min_length=1,
    )
    accept_lost_checkpoint: bool = setting(
        False,
        "Start over on changelogs whose checkpoint is lost, instead of refusing to start: all inputs are processed "
        "again, and entries that none of them updates stay.",
        SettingGroup.BATCHES,
    )
    commit_interval_ms: int = setting(
        0,
        "Time between the starts of two batches: updates of a key within it are published once. At 0 a batch starts as "
        "soon as the last is done. Kafka Streams has 30000.",
        SettingGroup.BATCHES,
        ge=0,
    )
    max_offsets: int | None = setting(
        None,
        "Most events that a batch reads of each stream. Tables are not limited.",
        SettingGroup.BATCHES,
        unset="chosen at each start, for batches of 5 s; 20000 at the first one",
        ge=1,
    )
    record_cache_max_bytes: int = setting(
        10_000_000,
        "The record cache: one pool for all stores, where a key's later update replaces the earlier one until the "
        "batch ends or the cache is full. 0 turns it off. Kafka Streams has 10 MiB.",
        SettingGroup.BATCHES,
        ge=0,
    )
    sink_tasks: int = setting(
        1,
        "Tasks that write a batch to Kafka, on as many executors at most. Each writes several partitions; more "
        "of them help batches of very many keys, but then producers have to be initialised more often.",
        SettingGroup.BATCHES,
        ge=1,
    )
    source_wait_ms: int = setting(
        60_000, "Longest time that the start waits for source topics.", SettingGroup.BATCHES, ge=0
    )
    application_version: str = setting(
        "v1",
        "Version of the application that this is. A later one has topics, checkpoints and nodes of its own, under the "
        "application id ID--VERSION (docs/versions.md).",
        SettingGroup.TOPICS,
        flag="--application-version",
    )
    store_partitions: int = setting(
        0,
        "Partitions of stores whose code names none, and whose changelog isn't there yet. 0: as many as the largest "
        "source.",
        SettingGroup.TOPICS,
        ge=0,
        le=100_000,
    )
    create_sources: int = setting(
        0,
        "Partitions of source topics that the start creates where they are missing: for development, where no producer "
        "has run yet. 0: it waits for them.",
        SettingGroup.TOPICS,
        ge=0,
        le=1_000,
    )
    stop_timeout_ms: int = setting(
        30_000, "Longest time that a stop waits for the batch under way.", SettingGroup.BATCHES, ge=1
    )
    spark_master: str | None = setting(
        None, "Spark's master.", SettingGroup.SPARK, flag="--master", unset="local[*], or what spark-submit says"
    )
    spark_conf: dict[str, str] = setting(
        {},
        "Further settings of Spark, stronger than ours. The flag may be repeated; the variable is a JSON object, the "
        "key in the file a table. If several of them give a name, the flag's value counts, else the variable's.",
        SettingGroup.SPARK,
        flag="--conf",
    )
    replication_factor: int = setting(
        -1, "Replicas of the topics that the processor creates; -1 is the broker's default.", SettingGroup.TOPICS, ge=-1
    )
    controller: Literal["own", "none"] = setting(
        "own",
        "The controller that assigns tasks: own, one in this process, which takes over when it starts; or none, the "
        "controller that acts already goes on (see `statehouse controller`).",
        SettingGroup.OWNERSHIP,
    )

    @field_validator("checkpoint_dir")
    @classmethod
    def _home_is_found(cls, directory: str) -> str:
        """Resolve a leading ~ of a local path; URIs of other file systems are left alone."""
        return str(Path(directory).expanduser()) if directory.startswith("~") else directory


class ControllerSettings(ApplicationIdSettings):
    """A standby controller. What it plans by it takes from the controller before it."""


class AssignPlanSettings(ProcessorSettings, ApplicationSettings):
    """What a look at an application's assignment needs: its processor's settings, and the application's id."""


class AttachSettings(ProcessorSettings, ApplicationSettings):
    """What attach needs: a processor's settings, and the application's id, because no code names it."""
