"""What the client returns: plain values, free of protobuf, so that callers can compare, print and serialize them.

Roles, states and reasons are their names ("ACTIVE", "RUNNING", "PARTITION_RESTORING"), not enums: a name that a newer
server introduces must reach an older client's user, not fail in between. None means "unknown"; zero is a known value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from statehouse.contract.consistency import ANY, Freshness
from statehouse.contract.moments import MomentToken
from statehouse.contract.positions import Token
from statehouse.contract.version_names import FIRST
from statehouse.errors import LookupFailure
from statehouse.keys.columns import KeyColumn, KeyColumns
from statehouse.serdes import JsonValue

StoreValue = JsonValue | bytes
"""A value as a Python object; the store's value serde decides its type."""
KeyLike = str | bytes
"""A key: text that the store's key serde parses, or its serialized bytes."""
AnyKey = KeyLike | bytearray | memoryview | int | float | KeyColumns
"""A key to ask for: also a number, if the store's key serde is long (int, numpy's integers) or double (float, too)."""

NOTHING_SEEN: Final = Token()


@dataclass(frozen=True, slots=True)
class Lookup:
    """One lookup of a batch; the fields are the arguments of the client's `get`."""

    store: str
    key: AnyKey
    freshness: Freshness = ANY
    raw: bool = False


@dataclass(frozen=True, slots=True)
class InputRecord:
    """A record of an input topic, named as in a producer's delivery report.

    Raises:
        ValueError: partition or offset is negative; a record that was not delivered has such an offset.

    """

    topic: str
    partition: int
    offset: int

    def __post_init__(self) -> None:
        if self.partition < 0 or self.offset < 0:
            raise ValueError(
                f"{self.topic}:{self.partition}:{self.offset}: partition and offset must not be negative; "
                "a record that was not delivered has none"
            )


@dataclass(frozen=True, slots=True)
class Host:
    """A query node, as clients may reach it."""

    instance_id: str
    host: str
    port: int

    def __str__(self) -> str:
        """Show the name and, if it is known, the address."""
        return f"{self.instance_id} ({self.host}:{self.port})" if self.host else self.instance_id


@dataclass(frozen=True, slots=True)
class Stamp:
    """The replica that answered for a partition, and how fresh that copy was at the moment of the read.

    Attributes:
        partition: changelog partition.
        epoch: assignment epoch that the answering node acted on.
        host: the node.
        role: ACTIVE, STANDBY, …
        position: next changelog offset the copy needs.
        lag: upper bound on the records not yet applied; 0 exactly when caught up.
        staleness_ms: time since the copy was last known to be at the changelog's end.
        since_ms: ephemeral stores: when this copy, empty then, began to follow the updates (epoch milliseconds); None
            for a store with a changelog.
        processor_age_ms: time since the processor last reported for the store's query; None for a store that no
            processor feeds.
        input_backlog: records of the query's sources that the processor had not processed then.
        moment: the batch that the answer is of, and `position` is where it ends; None unless the read asked for one.
        version: of the application.

    """

    partition: int
    epoch: int
    host: Host
    role: str
    position: int | None
    lag: int | None
    staleness_ms: int | None
    since_ms: int | None = None
    processor_age_ms: int | None = None
    input_backlog: int | None = None
    moment: MomentToken | None = None
    version: str = FIRST


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one lookup. The fields from `partition` to `since_ms`, and the last three, are those of `Stamp`.

    `found` is False when a restored replica of the partition does not have the key; in an ephemeral store, when the key
    was not updated since `since_ms`. A found value may be None: JSON has a null. `timestamp_ms`: the timestamp of the
    changelog record that holds the value, epoch milliseconds; in a versioned store the value holds since then. None if
    the store keeps no timestamps. `token`: give it to later reads that must see at least what this one saw.
    """

    found: bool
    value: StoreValue
    partition: int
    epoch: int
    host: Host
    role: str
    position: int | None
    lag: int | None
    staleness_ms: int | None
    since_ms: int | None = None
    timestamp_ms: int | None = None
    token: Token = NOTHING_SEEN
    processor_age_ms: int | None = None
    input_backlog: int | None = None
    moment: MomentToken | None = None
    version: str = FIRST


@dataclass(frozen=True, slots=True)
class Entry:
    """One key and its value; the key is text unless the scan asked for raw, or its bytes don't decode.

    `timestamp_ms` is the timestamp of the changelog record that holds the value; None if the store keeps no timestamps.
    """

    key: KeyLike
    value: StoreValue
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a scan, and who answered for each partition that was read.

    `moment`: the batch that it shows, if the read asked for one; all pages of a walk show the same.
    """

    entries: tuple[Entry, ...]
    replicas: tuple[Stamp, ...]
    token: Token = NOTHING_SEEN
    moment: MomentToken | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A window of the requested key.

    Attributes:
        start_ms: inclusive, epoch milliseconds.
        end_ms: exclusive, epoch milliseconds.
        timestamp_ms: of the changelog record that holds the value, epoch milliseconds; None if the store keeps none.

    """

    start_ms: int
    end_ms: int
    value: StoreValue
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A session of the requested key.

    Attributes:
        start_ms: time of its first record, epoch milliseconds.
        end_ms: time of its last record, inclusive, epoch milliseconds.
        timestamp_ms: of the changelog record that holds the value, epoch milliseconds; None if the store keeps none.

    """

    start_ms: int
    end_ms: int
    value: StoreValue
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KeyedWindow:
    """A window of a key; the key is as in `Entry`.

    Attributes:
        start_ms: inclusive, epoch milliseconds.
        end_ms: exclusive, epoch milliseconds.
        sequence: number of the value among those with the same start, in a store that retains duplicates; else 0.
        timestamp_ms: of the changelog record that holds the value, epoch milliseconds; None if the store keeps none.

    """

    key: KeyLike
    start_ms: int
    end_ms: int
    value: StoreValue
    sequence: int
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class VersionedRecord:
    """A value that a key had for a time.

    Attributes:
        valid_from_ms: from then on, inclusive, epoch milliseconds: the timestamp of its changelog record.
        valid_to_ms: until then, exclusive: the time of the next version, or of the deletion; None for the latest value.

    """

    value: StoreValue
    valid_from_ms: int
    valid_to_ms: int | None


@dataclass(frozen=True, slots=True)
class KeyedSession:
    """A session of a key; the key is as in `Entry`, the rest as in `Session`."""

    key: KeyLike
    start_ms: int
    end_ms: int
    value: StoreValue
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class WindowPage:
    """A page of a scan of windows, and who answered for each partition that was read.

    `moment`: the batch that it shows, if the read asked for one; all pages of a walk show the same.
    """

    windows: tuple[KeyedWindow, ...]
    replicas: tuple[Stamp, ...]
    token: Token = NOTHING_SEEN
    moment: MomentToken | None = None


@dataclass(frozen=True, slots=True)
class SessionPage:
    """A page of a scan of sessions, and who answered for each partition that was read.

    `moment`: the batch that it shows, if the read asked for one; all pages of a walk show the same.
    """

    sessions: tuple[KeyedSession, ...]
    replicas: tuple[Stamp, ...]
    token: Token = NOTHING_SEEN
    moment: MomentToken | None = None


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """A custom store's answer to one of its own queries, and the replica that answered."""

    result: JsonValue
    replica: Stamp
    token: Token = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class EntryCount:
    """How many entries a store has; `exact` says whether they were counted or estimated.

    `moment`: the batch that it is of, if the read asked for one.
    """

    count: int
    exact: bool
    replicas: tuple[Stamp, ...]
    token: Token = NOTHING_SEEN
    moment: MomentToken | None = None


@dataclass(frozen=True, slots=True)
class WatchPosition:
    """How far a watch has read in a partition; keep it to resume the watch there later.

    Attributes:
        offset: of the next changelog record to read.
        topic_id: Kafka's id of the changelog topic that `offset` belongs to.
        after: in watches that mark moments: the batch before the next one that is marked.
        version: of the application; empty: the first one. At another version a watch begins with current values.

    """

    partition: int
    offset: int
    topic_id: str = ""
    after: MomentToken | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a watched key, or a current value.

    Attributes:
        value: None if the entry was deleted; a stored JSON null is None, too.
        deleted: the change deleted the key, window or session. In a current value: the watched key has no value.
        offset: of the changelog record; None for a current value.
        timestamp_ms: of the changelog record, epoch milliseconds; None for a current value of a store that keeps none.
        start_ms: start of the window or session; None for other stores.
        end_ms: end of the window (exclusive) or session (inclusive).

    """

    key: KeyLike
    value: StoreValue
    deleted: bool
    offset: int | None
    timestamp_ms: int | None
    start_ms: int | None
    end_ms: int | None


@dataclass(frozen=True, slots=True)
class Update:
    """An update of one partition: changes in the order of its changelog, or current values.

    Attributes:
        current: the update holds current values, all of them or a part.
        begins: the first update of a set of current values. The set replaces everything known of the partition, also an
            incomplete earlier set; a key that is not in the set no longer exists.
        gap: changes before these current values may have been missed.
        position: where to resume after processing this update; None while current values are incomplete.

    """

    partition: int
    changes: tuple[Change, ...]
    current: bool
    begins: bool
    gap: bool
    position: WatchPosition | None
    replica: Stamp
    token: Token = NOTHING_SEEN


@dataclass(frozen=True, slots=True)
class Batch:
    """What a batch has changed of the watched keys, in all partitions: apply all of it, or nothing.

    Attributes:
        moment: the batch. What it has in common with earlier ones since the last is in it, too.
        updates: in each partition in order. One that `begins` replaces what you knew of its partition.
        token: where to go on after it.

    """

    moment: MomentToken
    updates: tuple[Update, ...]
    token: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A replica that the router considered. `reason` says why it is not used; None if it is eligible."""

    host: Host
    role: str
    eligible: bool
    reason: str | None
    detail: str
    position: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Location:
    """Where a key lives; `candidates` in the order in which they would be asked."""

    store: str
    partition: int
    epoch: int
    active: Host | None
    standbys: tuple[Host, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call to a node within a lookup.

    Attributes:
        role: the node's role in the assignment.
        round: number of the pass over the candidates in which the call was made, from 1.
        hedge: the call was sent because an earlier one was late.
        sent_after_ms: time from the lookup's arrival at the router until the call was sent.
        took_ms: duration of the call.
        outcome: ANSWERED, FAILED, or OVERTAKEN: given up because another replica answered first.
        reason: why the call failed; None if it did not fail.
        detail: the reason as text for people.

    """

    host: Host
    role: str
    round: int
    hedge: bool
    sent_after_ms: float
    took_ms: float
    outcome: str
    reason: str | None
    detail: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A lookup, and the router's steps to answer it.

    Attributes:
        answer: None if it failed.
        failure: None if it was answered.
        location: the key's place and the verdict on each candidate at the lookup's start.
        attempts: the calls to nodes, in the order they were sent.
        took_ms: from the lookup's arrival at the router to its end.
        hedge_after_ms: the router sends a hedge after this time without an answer.
        retry_budget_refused: what the retry budget did not allow, "hedge" or "retry"; None if nothing was refused.
        takes_express_way: whether the router's proxy sends such a lookup to a node on its own; None if an
            earlier version doesn't say.
        express_obstacle: why it doesn't; empty if it does.
        express_detail: the same in words.

    """

    answer: Answer | None
    failure: LookupFailure | None
    location: Location
    attempts: tuple[Attempt, ...]
    took_ms: float
    hedge_after_ms: float
    retry_budget_refused: str | None
    takes_express_way: bool | None = None
    express_obstacle: str = ""
    express_detail: str = ""


@dataclass(frozen=True, slots=True)
class Store:
    """A store, as the processor published it; a global one, which every node holds, has no sub-topology.

    `not_built`: nothing has been committed into it yet, and reads fail with STORE_NOT_BUILT. `newest_batch`: reads can
    be of this one once the replicas have it; None: `no_moments` says why, or the router is of an earlier version.
    """

    name: str
    kind: str
    key_serde: str
    value_serde: str
    changelog_topic: str
    partition_count: int
    sub_topology: int | None
    is_global: bool = False
    ephemeral: bool = False
    partitioner: str = ""
    not_built: bool = False
    warnings: tuple[str, ...] = ()
    """What is wrong with its topic, for people: misplaced records, another number of partitions and the like."""
    key_columns: tuple[KeyColumn, ...] = ()
    """Of keys that are JSON documents made of columns: then `KeyColumns` are keys, too."""
    newest_batch: int | None = None
    no_moments: str = ""

    @property
    def moments(self) -> str:
        """Which moments it shows, for people; empty if the router doesn't know."""
        if self.newest_batch is not None:
            return f"newest batch {self.newest_batch}"
        return f"none: {self.no_moments}" if self.no_moments else ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node, by its last heartbeat."""

    host: Host
    incarnation: str
    rack: str
    state: str
    version: str
    epoch: int
    heartbeat_age_ms: int
    reachable: bool
    capacity: int = 1
    dynamic: bool = False


@dataclass(frozen=True, slots=True)
class Replica:
    """A node's last report on a task; position and lag are sums over the task's stores."""

    instance_id: str
    role: str
    state: str
    position: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a store: who may answer for it, and what each replica last reported.

    Attributes:
        task: the task that it belongs to, "<sub-topology>_<partition>"; of a global store "global/<store>".
        active: None while no node lives, and for global stores.
        replicas: in the order in which a lookup without bounds would ask them; position and lag are this partition's
            alone.

    """

    store: str
    partition: int
    task: str
    epoch: int
    active: Host | None
    standbys: tuple[Host, ...]
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """The nodes that hold a task, by instance id; `active` is None while no node lives.

    A global store is the task "global/<store>", without an active; its `replicas` are all copies that nodes report.
    """

    task: str
    active: str | None
    standbys: tuple[str, ...]
    warm_ups: tuple[str, ...]
    reason: str
    replicas: tuple[Replica, ...]


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """Progress of one of the processor's queries, from its last completed batch.

    Attributes:
        input_rows_per_second: since the start of the previous batch; 0 when idle.
        backlog: number of offsets in the sources that are not processed yet.
        backlog_eta_ms: None if the backlog doesn't shrink.
        watermark_ms: rows with an earlier event time are late, epoch milliseconds; None without a watermark.
        state_bytes: memory that the state stores use.
        dead_letters: records sent to the dead-letter topic since the processor started.
        batch_ms: how long the whole batch took; None if the processor is of an earlier version.
        dead_letters_by_reason: the same records by the reason of their refusal; empty from earlier versions.
        late_rows: rows dropped since the processor started, because the watermark had passed them; None from earlier
            versions.

    """

    input_rows_per_second: float
    backlog: int
    backlog_eta_ms: int | None
    watermark_ms: int | None
    state_rows: int
    state_bytes: int
    dead_letters: int
    batch_ms: int | None = None
    dead_letters_by_reason: Mapping[str, int] = field(default_factory=dict)
    late_rows: int | None = None


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """Why a query dies.

    Attributes:
        restarts: how often it was started again lately, as far as that counts against it.
        reason: "ZeroDivisionError at topology.py:19, record orders/3/812", as far as that is known.
        given_up: whether it is not started again.

    """

    restarts: int
    reason: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class ProcessorQuery:
    """One of the processor's queries, from its last commit record.

    The processor writes one per batch, and per heartbeat interval.

    Attributes:
        idle: whether the query had nothing to do then.
        stopped: whether its processor ended in an orderly way.
        record_age_ms: how old what that record says is; in a long batch it is older than the record.
        batch_age_ms: time since its newest batch was committed; None if an earlier process committed it.
        status: None until the process has completed a batch.
        input_backlog: records of the sources that were not processed when the record was written; None if unknown.
        state: RUNNING, IDLE, RESTARTING, FAILED, SILENT or STOPPED; empty from a router of an earlier version.
        failure: why it fails; None while it does not.
        heard_age_ms: time since its processor was heard; None from a router of an earlier version.

    """

    name: str
    stores: tuple[str, ...]
    idle: bool
    stopped: bool
    record_age_ms: int
    batch_id: int
    batch_age_ms: int | None
    status: QueryStatus | None
    input_backlog: int | None = None
    state: str = ""
    failure: QueryFailure | None = None
    heard_age_ms: int | None = None

    @property
    def condition(self) -> str:
        """How it does, for people: "idle", "SILENT 53 s", "RESTARTING (5 times: KeyError at topology.py:19)"."""
        if not self.state:
            return "stopped" if self.stopped else "idle" if self.idle else "running"
        if self.state == "SILENT":
            return f"SILENT {(self.heard_age_ms or 0) // 1000} s"
        failure = self.failure
        if failure is None or self.state not in {"RESTARTING", "FAILED"}:
            return self.state.lower()
        times = f"{failure.restarts} {'time' if failure.restarts == 1 else 'times'}: " if failure.restarts else ""
        return f"{self.state} ({times}{failure.reason})"


@dataclass(frozen=True, slots=True)
class Controller:
    """The acting controller, which assigns tasks to nodes, from its last record; it writes one per heartbeat interval.

    Attributes:
        host: where it runs, for people.
        standby: whether it is a standby controller that has taken over, and not the processor's own.
        stopped: whether it ended in an orderly way.
        record_age_ms: time since that record.

    """

    host: str
    standby: bool
    stopped: bool
    record_age_ms: int


@dataclass(frozen=True, slots=True)
class ChangelogSetting:
    """A setting of a changelog, or its number of partitions or replicas.

    Attributes:
        wanted: by the application.
        found: what the brokers have; None if the topic doesn't exist.
        remedy: what to do about a difference that the processor's next start doesn't end; empty otherwise.

    """

    name: str
    wanted: str
    found: str | None
    remedy: str = ""

    @property
    def differs(self) -> bool:
        """Whether it isn't as it is wanted."""
        return self.found != self.wanted


@dataclass(frozen=True, slots=True)
class InputEnd:
    """Where a batch ends in a partition of an input: `offset` names the first record that isn't in it."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class DescribedMoment:
    """A batch, and what it and all batches before it include of the inputs."""

    moment: MomentToken
    source_ends: tuple[InputEnd, ...]


@dataclass(frozen=True, slots=True)
class ChangelogSettings:
    """A store's changelog, as the processor last compared it with what the application wants.

    `compared_age_ms`: time since then; None if it has not said so.
    """

    store: str
    topic: str
    compared_age_ms: int | None
    settings: tuple[ChangelogSetting, ...]


@dataclass(frozen=True, slots=True)
class VersionsInfo:
    """The versions of an application, as the router knows them.

    Attributes:
        serving: the one that answers.
        wanted: the one that is to answer, by the newest change: the router may still wait for its fleet.
        number: grows with each change; 0: there never was one.
        names: all versions, in the order in which they came.
        before: the one that a rollback leads to; empty: none.
        kept_until_ms: until when, epoch milliseconds.

    """

    serving: str
    wanted: str
    number: int
    names: tuple[str, ...]
    before: str
    kept_until_ms: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """The newest assignment, the nodes and their last reports, as the router knows them.

    `served_by`: what takes the router's calls, "grpcio", "proxy" or "proxy with express way". `version`: the one that
    this is the fleet of; `versions` is None if the router is of an earlier version than knows any.
    """

    application_id: str
    epoch: int
    reason: str
    stores: tuple[Store, ...]
    nodes: tuple[Node, ...]
    tasks: tuple[Task, ...]
    queries: tuple[ProcessorQuery, ...] = ()
    controller: Controller | None = None
    served_by: str | None = None
    version: str = FIRST
    versions: VersionsInfo | None = None
