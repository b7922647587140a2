"""Why a request failed: one table for nodes, routers, clients and the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from google.rpc import code_pb2

from statehouse.v1 import errors_pb2

DOMAIN = "statehouse"
DETAILS_KEY = "grpc-status-details-bin"
"""The metadata of a failed call that has its rich status."""
_PREFIX = "ERROR_REASON_"


class Reason(IntEnum):
    """Why a request failed; the numbers equal `statehouse.v1.ErrorReason`'s."""

    UNKNOWN_STORE = errors_pb2.ERROR_REASON_UNKNOWN_STORE
    INVALID_KEY = errors_pb2.ERROR_REASON_INVALID_KEY
    INVALID_REQUEST = errors_pb2.ERROR_REASON_INVALID_REQUEST
    INVALID_PAGE_TOKEN = errors_pb2.ERROR_REASON_INVALID_PAGE_TOKEN
    PARTITION_NOT_OWNED = errors_pb2.ERROR_REASON_PARTITION_NOT_OWNED
    PARTITION_RESTORING = errors_pb2.ERROR_REASON_PARTITION_RESTORING
    TASK_FAILED = errors_pb2.ERROR_REASON_TASK_FAILED
    NOT_ACTIVE = errors_pb2.ERROR_REASON_NOT_ACTIVE
    ACTIVE_UNCONFIRMED = errors_pb2.ERROR_REASON_ACTIVE_UNCONFIRMED
    LAG_EXCEEDS_BOUND = errors_pb2.ERROR_REASON_LAG_EXCEEDS_BOUND
    STALENESS_EXCEEDS_BOUND = errors_pb2.ERROR_REASON_STALENESS_EXCEEDS_BOUND
    NO_REPLICA_AVAILABLE = errors_pb2.ERROR_REASON_NO_REPLICA_AVAILABLE
    ROUTING_NOT_READY = errors_pb2.ERROR_REASON_ROUTING_NOT_READY
    VALUE_UNDECODABLE = errors_pb2.ERROR_REASON_VALUE_UNDECODABLE
    NODE_SHUTTING_DOWN = errors_pb2.ERROR_REASON_NODE_SHUTTING_DOWN
    OVERLOADED = errors_pb2.ERROR_REASON_OVERLOADED
    ATTEMPT_TIMED_OUT = errors_pb2.ERROR_REASON_ATTEMPT_TIMED_OUT
    UNREACHABLE = errors_pb2.ERROR_REASON_UNREACHABLE
    HOP_LIMIT = errors_pb2.ERROR_REASON_HOP_LIMIT
    MESSAGE_TOO_LARGE = errors_pb2.ERROR_REASON_MESSAGE_TOO_LARGE
    UNKNOWN_ADDRESS = errors_pb2.ERROR_REASON_UNKNOWN_ADDRESS
    DEADLINE_EXCEEDED = errors_pb2.ERROR_REASON_DEADLINE_EXCEEDED
    INTERNAL = errors_pb2.ERROR_REASON_INTERNAL
    WRONG_STORE_KIND = errors_pb2.ERROR_REASON_WRONG_STORE_KIND
    BEFORE_HISTORY = errors_pb2.ERROR_REASON_BEFORE_HISTORY
    SCAN_TOO_LONG = errors_pb2.ERROR_REASON_SCAN_TOO_LONG
    POSITION_NOT_REACHED = errors_pb2.ERROR_REASON_POSITION_NOT_REACHED
    WOULD_WAIT = errors_pb2.ERROR_REASON_WOULD_WAIT
    INPUT_NOT_PROCESSED = errors_pb2.ERROR_REASON_INPUT_NOT_PROCESSED
    PROCESSOR_AGE_EXCEEDS_BOUND = errors_pb2.ERROR_REASON_PROCESSOR_AGE_EXCEEDS_BOUND
    INPUT_BACKLOG_EXCEEDS_BOUND = errors_pb2.ERROR_REASON_INPUT_BACKLOG_EXCEEDS_BOUND
    STORE_NOT_BUILT = errors_pb2.ERROR_REASON_STORE_NOT_BUILT
    TOPIC_CHANGED = errors_pb2.ERROR_REASON_TOPIC_CHANGED
    KEYS_MISPLACED = errors_pb2.ERROR_REASON_KEYS_MISPLACED
    MOMENTS_UNAVAILABLE = errors_pb2.ERROR_REASON_MOMENTS_UNAVAILABLE
    MOMENT_GONE = errors_pb2.ERROR_REASON_MOMENT_GONE
    MOMENT_NOT_REACHED = errors_pb2.ERROR_REASON_MOMENT_NOT_REACHED
    VALUE_TOO_OLD = errors_pb2.ERROR_REASON_VALUE_TOO_OLD
    SERDE_UNAVAILABLE = errors_pb2.ERROR_REASON_SERDE_UNAVAILABLE
    UNAUTHENTICATED = errors_pb2.ERROR_REASON_UNAUTHENTICATED
    PERMISSION_DENIED = errors_pb2.ERROR_REASON_PERMISSION_DENIED
    VERSION_CHANGED = errors_pb2.ERROR_REASON_VERSION_CHANGED
    UNKNOWN_VERSION = errors_pb2.ERROR_REASON_UNKNOWN_VERSION


@dataclass(frozen=True, slots=True)
class ReasonSpec:
    """What a reason means: its gRPC status, whether another replica may succeed, and what to do."""

    code: int
    elsewhere: bool
    """Whether a router should try the next candidate after it."""
    meaning: str
    remedy: str

    @property
    def status(self) -> str:
        """The name of the gRPC status."""
        return str(code_pb2.Code.Name(self.code))


REASONS: Mapping[Reason, ReasonSpec] = MappingProxyType(
    {
        Reason.UNKNOWN_STORE: ReasonSpec(
            code_pb2.NOT_FOUND,
            False,
            "The assignment has no store of that name.",
            "List the stores with `statehouse stores list` or FleetService.ListStores, and check the application id.",
        ),
        Reason.INVALID_KEY: ReasonSpec(
            code_pb2.INVALID_ARGUMENT,
            False,
            "The key is missing, or the store's key serde can't parse its text.",
            "Send the key in the form the serde expects, or as raw bytes.",
        ),
        Reason.INVALID_REQUEST: ReasonSpec(
            code_pb2.INVALID_ARGUMENT,
            False,
            "A field of the request is missing or out of range.",
            "Correct the field the message names.",
        ),
        Reason.INVALID_PAGE_TOKEN: ReasonSpec(
            code_pb2.INVALID_ARGUMENT,
            False,
            "The page token is damaged or belongs to another scan.",
            "Start the scan again without a token, or keep its other fields unchanged.",
        ),
        Reason.PARTITION_NOT_OWNED: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "This node does not hold the partition.",
            "Ask the route in the details, or a router.",
        ),
        Reason.PARTITION_RESTORING: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The replica is still reading its changelog.",
            "Ask another replica, or again later; `statehouse restore --watch` and GetNode show the progress.",
        ),
        Reason.TASK_FAILED: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The replica's task stopped with an error.",
            "See GetNode and the node's log for the error.",
        ),
        Reason.NOT_ACTIVE: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The request demands the active, and this replica is not the active.",
            "Ask the active, or allow standbys.",
        ),
        Reason.ACTIVE_UNCONFIRMED: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The node is the active, or holds a global store, but has had no contact with Kafka for longer than "
            "the session timeout.",
            "Allow standbys, or wait until the node reaches its brokers.",
        ),
        Reason.LAG_EXCEEDS_BOUND: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The replica's lag is larger than max_lag, or unknown: the broker has not named the log's end within the "
            "session timeout.",
            "Allow a larger lag, or ask again once the replica has caught up; if it is unknown, check the node's "
            "connection to Kafka.",
        ),
        Reason.STALENESS_EXCEEDS_BOUND: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The replica's staleness is larger than max_staleness_ms, or unknown.",
            "Allow more staleness, or check the node's connection to Kafka.",
        ),
        Reason.PROCESSOR_AGE_EXCEEDS_BOUND: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The processor's last report for the store is older than max_processor_age_ms, or there is none yet. A "
            "static topology has no processor.",
            "Check that the processor runs, with `statehouse status`; allow more than its longest batch and one and a "
            "half of its heartbeat_interval_ms.",
        ),
        Reason.INPUT_BACKLOG_EXCEEDS_BOUND: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The processor had more records left to process than max_input_backlog when it last reported for the "
            "store, or nobody knows how many.",
            "Allow a larger backlog, or ask again once the processor has caught up.",
        ),
        Reason.NO_REPLICA_AVAILABLE: ReasonSpec(
            code_pb2.UNAVAILABLE,
            False,
            "No replica could answer within the bound.",
            "The candidates in the details say why; if no standby is configured, set num_standby_replicas.",
        ),
        Reason.ROUTING_NOT_READY: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The process has not yet read a complete assignment.",
            "Check that the processor has started once and that Kafka is reachable.",
        ),
        Reason.VALUE_UNDECODABLE: ReasonSpec(
            code_pb2.DATA_LOSS,
            False,
            "The store's value serde can't decode the stored bytes.",
            "Read with raw=true, and check which program wrote the changelog.",
        ),
        Reason.NODE_SHUTTING_DOWN: ReasonSpec(
            code_pb2.UNAVAILABLE, True, "The node is shutting down.", "Ask another replica, or a router."
        ),
        Reason.OVERLOADED: ReasonSpec(
            code_pb2.RESOURCE_EXHAUSTED,
            True,
            "The server has as many requests as it allows.",
            "Send less, or add nodes or routers; ask this server again after the delay in the details' RetryInfo.",
        ),
        Reason.ATTEMPT_TIMED_OUT: ReasonSpec(
            code_pb2.DEADLINE_EXCEEDED,
            True,
            "The candidate did not answer within the attempt's time.",
            "The node is frozen or overloaded; the router has asked the next candidate.",
        ),
        Reason.UNREACHABLE: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The candidate could not be reached.",
            "Check that the node runs and that its advertised address is reachable.",
        ),
        Reason.HOP_LIMIT: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            False,
            "The request has already passed a router.",
            "A node's advertised address points at a router; correct it.",
        ),
        Reason.MESSAGE_TOO_LARGE: ReasonSpec(
            code_pb2.RESOURCE_EXHAUSTED,
            False,
            "The answer is larger than max_message_bytes.",
            "Raise max_message_bytes on client, router and nodes alike.",
        ),
        Reason.UNKNOWN_ADDRESS: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The assignment names the node, but the members topic has no address for it.",
            "Wait for the node's heartbeat, or for the next assignment.",
        ),
        Reason.DEADLINE_EXCEEDED: ReasonSpec(
            code_pb2.DEADLINE_EXCEEDED,
            False,
            "The request's deadline passed before any candidate answered.",
            "Allow more time; the candidates in the details show every attempt.",
        ),
        Reason.INTERNAL: ReasonSpec(
            code_pb2.INTERNAL, True, "The server has a defect.", "See the server's log, and report the defect."
        ),
        Reason.WRONG_STORE_KIND: ReasonSpec(
            code_pb2.INVALID_ARGUMENT,
            False,
            "Stores of this kind have no such query.",
            "Use a query of the store's kind; the message names both.",
        ),
        Reason.SCAN_TOO_LONG: ReasonSpec(
            code_pb2.DEADLINE_EXCEEDED,
            False,
            "A scan or exact count took longer than the node allows.",
            "Ask for smaller pages or a narrower range, or take the estimated count.",
        ),
        Reason.POSITION_NOT_REACHED: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The replica did not reach a position in at_least in time.",
            "Allow more time, ask another replica, or drop at_least. A position beyond the log's end is never reached.",
        ),
        Reason.WOULD_WAIT: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "An entry of a batch would have to wait for its bound.",
            "Ask for the key alone; a router does so on its own.",
        ),
        Reason.INPUT_NOT_PROCESSED: ReasonSpec(
            code_pb2.DEADLINE_EXCEEDED,
            False,
            "The processor did not commit the input record in time.",
            "Allow more time than a micro-batch takes; check in the processor's log that it runs.",
        ),
        Reason.STORE_NOT_BUILT: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "Nothing has been committed into the store yet, so that nobody can say that a key is absent.",
            "Ask again once the processor's first batch is done; `statehouse status` shows its queries.",
        ),
        Reason.TOPIC_CHANGED: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The store's changelog topic has changed since the store was opened: its id, its partition count or its "
            "cleanup policy.",
            "The message names the change. Undo it, or create the topic anew and have the store written again.",
        ),
        Reason.KEYS_MISPLACED: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            False,
            "Records of the store stand in other partitions than its partitioner gives their keys, so that one "
            "partition can't prove a key's absence.",
            "Ask a router, which asks all partitions for `Get`, or scan; have the topic written anew with Kafka's "
            "default partitioner (murmur2; librdkafka: partitioner=murmur2_random).",
        ),
        Reason.MOMENTS_UNAVAILABLE: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The store can't be read as of a batch: no processor of ours writes it, or processor or node are of an "
            "earlier version.",
            "Read it without a moment.",
        ),
        Reason.MOMENT_GONE: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The replica does not keep the batch that the read is to be of: it is too old, or the replica has restored "
            "since.",
            "Begin again with the newest batch.",
        ),
        Reason.MOMENT_NOT_REACHED: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The replica has not reached a batch that the read may be of within the deadline.",
            "Allow more time; `statehouse status` shows whether the processor and the replicas keep up.",
        ),
        Reason.VALUE_TOO_OLD: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            True,
            "The value's record is older than max_value_age_ms, or has no time.",
            "Take it as missing, or allow a greater age.",
        ),
        Reason.SERDE_UNAVAILABLE: ReasonSpec(
            code_pb2.UNAVAILABLE,
            True,
            "The replica can't decode for now. It can't get the schema from the registry, or its node has no plug-in "
            "for the store's serde.",
            "Read with raw=true; check the node's schema_registry_url and that the registry answers, or install the "
            "plug-in that the message names.",
        ),
        Reason.BEFORE_HISTORY: ReasonSpec(
            code_pb2.OUT_OF_RANGE,
            False,
            "A time that was asked for is older than the history that the store keeps.",
            "Ask for a later time, or give the store a longer history retention.",
        ),
        Reason.UNAUTHENTICATED: ReasonSpec(
            code_pb2.UNAUTHENTICATED,
            True,
            "The server doesn't know who the caller is: no certificate and no token, or the rules name none of "
            "them, or it has expired or is revoked.",
            "Show a certificate or a token that the server's rules name; its log says what it saw.",
        ),
        Reason.PERMISSION_DENIED: ReasonSpec(
            code_pb2.PERMISSION_DENIED,
            True,
            "The server knows the caller, and its rules don't allow this call.",
            "Ask the person who keeps the rules to change them; the server's audit log has the denial.",
        ),
        Reason.VERSION_CHANGED: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            False,
            "Another version of the application serves now than the one that gave the page token or position.",
            "Begin the scan or session anew; STORE@VERSION still reads the version from before.",
        ),
        Reason.UNKNOWN_VERSION: ReasonSpec(
            code_pb2.FAILED_PRECONDITION,
            False,
            "The application has no version of this name: it is retired, or its processor has not started.",
            "`statehouse versions` lists them.",
        ),
    }
)


def reason_from_number(number: int) -> Reason:
    """Return the reason with this wire number; INTERNAL if this version does not know it."""
    try:
        return Reason(number)
    except ValueError:
        return Reason.INTERNAL


def reason_name(number: int) -> str:
    """Return a reason's short name, for people."""
    try:
        return errors_pb2.ErrorReason.Name(errors_pb2.ErrorReason.ValueType(number)).removeprefix(_PREFIX)
    except ValueError:
        return f"REASON_{number}"


def wire_name(reason: Reason) -> str:
    """Return the name in `google.rpc.ErrorInfo.reason`."""
    return errors_pb2.ErrorReason.Name(reason.value)
