"""The processor's settings, with every default and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from processor.ownership.settings import OwnershipSettings
from processor.restarts import RestartPolicy
from statehouse.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class ProcessorSettings:
    """How an application runs. Spark's own settings pass through `spark_conf`."""

    bootstrap: str
    """Kafka's bootstrap servers."""
    checkpoint_dir: str
    """Directory (any Hadoop file system) of Spark's checkpoints; the queries' identity is kept in it."""
    accept_lost_checkpoint: bool = False
    """Begin anew over changelogs whose checkpoint is gone: all inputs are processed again, and entries that none of
    them updates stay. Otherwise such a start is refused."""
    commit_interval_s: float = 0.0
    """Trigger interval: updates of a key within it are published once. 0: a batch as soon as the last is done."""
    max_offsets_per_trigger: int = 20_000
    """Events a batch and stream at most; a batch of Python state does some 20,000 a second. Tables are not limited."""
    shuffle_partitions: int = 2
    """Tasks of a stateful stage, fixed at a query's first start. About one a core; more cost latency."""
    sink_tasks: int = 1
    """Tasks that write a batch; each writes several partitions at once. More help batches of very many keys, but
    then a partition's producer moves between worker processes and has to be initialised more often."""
    record_cache_max_bytes: int = 10_000_000
    """Rows of a batch and sink partition that are looked through at once for later ones of the same key. Kafka
    Streams' `statestore.cache.max.bytes` is 10 MB, too, for all stores of an instance."""
    master: str | None = None
    """Spark master; None: as spark-submit says, else local[*]."""
    spark_conf: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings, stronger than ours."""
    replication_factor: int = -1
    """Of the topics we create; -1 is the broker's default."""
    min_compaction_lag_ms: int = 600_000
    """How long changelog records stay uncompacted, so that a watcher can resume within it."""
    changelog_additional_retention_ms: int = 86_400_000
    """How much longer than their retention the broker keeps the windows and sessions of a changelog, by its clock."""
    updates_retention_ms: int = 600_000
    """How long the broker keeps the updates of an ephemeral store."""
    ownership: OwnershipSettings = field(default_factory=OwnershipSettings)
    """The ownership controller's; its heartbeat interval is also how often an idle query repeats its commit record."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    """How often a query that died is started again before the process ends."""
    transaction_timeout_s: float = 60.0
    """How long a transaction of a task that hangs may hold readers back."""
    write_timeout_s: float = 60.0
    """How long a task tries to write its part of a batch, retries included, before Spark runs it again."""
    stop_timeout_s: float = 30.0
    """How long a stop waits for the batch under way."""
    source_wait_s: float = 60.0
    """How long the start waits for source topics that don't exist yet."""
    bind_host: str = "127.0.0.1"
    """Address that metrics are served on."""
    metrics_port: int | None = None
    """Port for Prometheus; None: no metrics server, 0: any."""

    def __post_init__(self) -> None:
        """Refuse what can't work.

        Raises:
            ConfigurationError: names the setting and what it must be.

        """
        if not self.bootstrap:
            raise ConfigurationError("bootstrap is empty: name at least one broker as host:port")
        if not self.checkpoint_dir:
            raise ConfigurationError("checkpoint_dir is empty: without it a restart would process everything again")
        for name in ("max_offsets_per_trigger", "shuffle_partitions", "sink_tasks", "record_cache_max_bytes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1")
        for name in ("transaction_timeout_s", "write_timeout_s", "stop_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} must be more than 0")
        if self.updates_retention_ms < 1:
            raise ConfigurationError("updates_retention_ms must be at least 1")
        for name in (
            "commit_interval_s",
            "source_wait_s",
            "min_compaction_lag_ms",
            "changelog_additional_retention_ms",
        ):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} can't be negative")
