"""The settings of a query node."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from statehouse.errors import ContractError
from statehouse.errors.checked import CAPACITY_MAX, checked_host, checked_text
from statehouse.settings.common import HeartbeatSettings, RegistrySettings, ServerSettings
from statehouse.settings.declaration import SettingGroup, setting

_MIB = 1024 * 1024


class NodeSettings(ServerSettings, HeartbeatSettings, RegistrySettings):
    """A query node."""

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
        "Longest wait at SIGTERM until others have taken the node's active tasks over. SIGINT stops at once.",
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
    state_dir: Path = setting(
        Path("~/.local/share/statehouse/state"), "Directory that the node keeps its state in.", SettingGroup.STATE
    )
    checkpoint_interval_ms: int = setting(
        10_000,
        "How often the stores' content is written to disk and noted in checkpoints. After a crash a node reads again "
        "what came since.",
        SettingGroup.STATE,
        ge=100,
    )
    confirm_interval_ms: int = setting(
        250,
        "How often the node asks the broker for the ends of the changelogs. In between, staleness grows by as much.",
        SettingGroup.STATE,
        ge=20,
    )
    restore_batch_records: int = setting(
        250, "Records that a restore reads and writes at once. Kafka Streams has 1000.", SettingGroup.STATE, ge=1
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
        ge=8 * _MIB,
    )
    write_buffer_bytes: int = setting(
        64 * _MIB,
        "The memtables' part of block_cache_bytes, at most half of it. Kafka Streams has up to 48 MiB for each store.",
        SettingGroup.STATE,
        ge=4 * _MIB,
    )
    memory_store_max_bytes: int = setting(
        64 * _MIB,
        "Bytes that one partition of an in-memory store may hold. Beyond them its task stops.",
        SettingGroup.STATE,
        ge=1024,
    )
    max_batch_entries: int = setting(
        1_000,
        "Most lookups in one BatchGet. Routers and clients send up to 1000.",
        SettingGroup.READS,
        ge=1_000,
    )
    max_open_scans: int = setting(
        64,
        "Most scans, exact counts and pages that are read at once. Kafka Streams has no bound.",
        SettingGroup.READS,
        ge=1,
    )
    scan_timeout_ms: int = setting(
        30_000, "Longest time of a scan, exact count or page. Kafka Streams has no bound.", SettingGroup.READS, ge=1
    )
    max_position_waits: int = setting(
        1_000,
        "Most requests that wait at once for a position that they must see. Further ones are refused.",
        SettingGroup.READS,
        ge=0,
    )
    position_wait_timeout_ms: int = setting(
        5_000, "Longest wait for a position if the request has no deadline.", SettingGroup.READS, ge=0
    )
    max_watches: int = setting(
        1_000,
        "Most watches at once. A router's watch of several partitions counts once for each.",
        SettingGroup.WATCHES,
        ge=0,
    )
    watch_tail_bytes: int = setting(
        _MIB,
        "Memory for the latest changes of a store's partition, kept for watches. At 0 watches read the log for each "
        "change.",
        SettingGroup.WATCHES,
        ge=0,
    )

    @model_validator(mode="after")
    def _memtables_leave_room_for_blocks(self) -> Self:
        if self.write_buffer_bytes > self.block_cache_bytes // 2:
            raise ValueError(
                "write_buffer_bytes is charged to block_cache_bytes and may take half of it at most, or there is no "
                "room for blocks: lower the first or raise the second"
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
