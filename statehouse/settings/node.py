"""The settings of a query node."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from statehouse.errors import ContractError
from statehouse.errors.checked import CAPACITY_MAX, checked_host, checked_text
from statehouse.settings.common import HeartbeatPaceSettings, NodeNameSettings, RegistrySettings, ServerSettings
from statehouse.settings.declaration import SettingGroup, setting

_MIB = 1024 * 1024


class NodeSettings(ServerSettings, HeartbeatPaceSettings, RegistrySettings, NodeNameSettings):
    """A query node."""

    checkpoint_interval_ms: ClassVar[int] = 10_000
    """How often stores are written to disk: a crash costs as much of the log to read again, in milliseconds."""
    confirm_interval_ms: ClassVar[int] = 250
    """How often the ends of changelogs are asked for: one request for all, which brokers don't notice."""
    restore_batch_records: ClassVar[int] = 250
    """Records that a restore reads and writes together: more gained nothing (docs/adr/0005)."""
    max_open_scans: ClassVar[int] = 64
    """Scans, exact counts and pages that are read at the same time: each holds a snapshot, and threads are few."""
    scan_timeout_ms: ClassVar[int] = 30_000
    """Longest time of one, whatever its caller's deadline: a page is read in milliseconds."""
    max_position_waits: ClassVar[int] = 1_000
    """Requests that wait for a position at the same time; each takes some memory and no thread."""
    position_wait_timeout_ms: ClassVar[int] = 5_000
    """Longest wait for a position of a request without a deadline: as long as routers wait."""
    watch_tail_bytes: ClassVar[int] = _MIB
    """Memory for the latest changes of a partition, which watches read: seconds of most changelogs."""
    assumed_log_records_per_s: ClassVar[int] = 500_000
    """What a restore is taken to read of a log before one was measured: below what it does."""
    peers_asked_after_ms: ClassVar[int] = 1_000
    """A store whose log takes longer to read is asked of other nodes: below that asking takes as long."""
    peer_silence_ms: ClassVar[int] = 10_000
    """Longest time in which nothing comes from another node that gives a store: longer than a disk stalls often."""
    max_batch_entries: ClassVar[int] = 1_000
    """Lookups in one BatchGet: as many as routers and clients send, which is part of the contract."""

    instance_id: str = setting(
        "",
        "The node's stable name: a restart under it keeps the node's tasks. Without one the node is a dynamic member, "
        "and its tasks move when it leaves.",
        SettingGroup.OWNERSHIP,
        unset="none: a name is made up for each run",
    )
    rack: str = setting("", "The node's rack. Standbys are spread over racks.", SettingGroup.OWNERSHIP)
    capacity: int = setting(
        1,
        "Weight of the node's share of the tasks: at 2 it holds twice what others do.",
        SettingGroup.OWNERSHIP,
        ge=1,
        le=CAPACITY_MAX,
    )
    drain_timeout_ms: int = setting(
        10_000,
        "Longest wait at SIGTERM until others have taken the node's active tasks over. SIGINT stops immediately.",
        SettingGroup.OWNERSHIP,
        ge=0,
    )
    node_port: int = setting(
        7101, "Port to listen on; 0 takes a free one.", SettingGroup.ADDRESS, flag="--port", ge=0, le=65_535
    )
    advertised_host: str = setting(
        "", "Address at which others reach the node.", SettingGroup.ADDRESS, unset="bind_host"
    )
    advertised_port: int = setting(
        0, "Port at which others reach the node; 0 is the port it listens on.", SettingGroup.ADDRESS, ge=0, le=65_535
    )
    stop_grace_ms: int = setting(
        2_000, "How long calls under way may go on when the node stops.", SettingGroup.ADDRESS, ge=0
    )
    engine: Literal["auto", "go", "python"] = setting(
        "auto",
        "What holds stores of the built-in kinds: the program in front of the node, or the node itself. auto: the "
        "program if there is one.",
        SettingGroup.STATE,
    )
    state_dir: Path = setting(
        Path("~/.local/share/statehouse/state"), "Directory that the node keeps its state in.", SettingGroup.STATE
    )
    state_cleanup_delay_ms: int = setting(
        600_000,
        "How long the state of a task that left the node is kept. Kafka Streams has 600000.",
        SettingGroup.STATE,
        ge=0,
    )
    block_cache_bytes: int = setting(
        256 * _MIB,
        "Memory of RocksDB over all stores: blocks, filters, memtables. Kafka Streams has 50 MiB for each store.",
        SettingGroup.STATE,
        ge=16 * _MIB,
    )
    memory_store_max_bytes: int = setting(
        64 * _MIB,
        "Bytes that one partition of an in-memory store may hold. Beyond them its task stops.",
        SettingGroup.STATE,
        ge=1024,
    )
    peer_bytes_per_s: int = setting(
        0,
        "Most bytes a second of stores' files to and from other nodes, of all together; 0 is no limit.",
        SettingGroup.STATE,
        ge=0,
    )
    max_watches: int = setting(
        1_000,
        "Most open watches. A router's watch of several partitions counts once for each.",
        SettingGroup.WATCHES,
        ge=0,
    )

    @property
    def write_buffer_bytes(self) -> int:
        """The memtables' part of the cache: a quarter, so that most of it is left for blocks."""
        return self.block_cache_bytes // 4

    @model_validator(mode="after")
    def _lag_stays_known(self) -> Self:
        least_ms = 3 * self.confirm_interval_ms
        if self.session_timeout_ms < least_ms:
            raise ValueError(
                f"session_timeout_ms must be at least {least_ms}: nodes ask for the ends of changelogs every "
                f"{self.confirm_interval_ms} ms, and one late answer would make every lag unknown"
            )
        return self

    @model_validator(mode="after")
    def _address_can_be_advertised(self) -> Self:
        if not self.advertised_host and self.bind_host in {"0.0.0.0", "::", "[::]"}:  # noqa: S104 - refused, not bound
            raise ValueError(f"bind_host {self.bind_host} is no address that others can call: set advertised_host")
        return self

    @model_validator(mode="after")
    def _others_believe_its_heartbeats(self) -> Self:
        try:
            checked_text("instance_id", self.instance_id)
            checked_text("rack", self.rack)
            checked_host("advertised_host", self.advertised_host or self.bind_host)
        except ContractError as error:
            raise ValueError(str(error)) from error
        return self
