"""The exceptions of this project, and how a failed lookup crosses gRPC. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from statehouse.errors.reasons import REASONS, Reason, reason_from_number, reason_name
from statehouse.v1 import errors_pb2

SHOWN_MAX: Final = 200
"""Characters of what a caller has sent that a message repeats."""


class StatehouseError(Exception):
    """Root of the errors of this project. They can be pickled and copied, as queues of work between processes do."""

    def __reduce__(self) -> tuple[object, ...]:
        """Say how to make an equal one: not by its class's own arguments, as `args` has only the message."""
        return _same_error, (type(self), self.args), self.__dict__


def _same_error(kind: type[StatehouseError], args: tuple[object, ...]) -> StatehouseError:
    error = kind.__new__(kind)
    error.args = args
    return error


class ConfigurationError(StatehouseError):
    """Settings, or a topology, that can't work; the message says what to change."""


class UsageError(StatehouseError, RuntimeError):
    """A client that is used where it can't work: in a forked process, on another event loop, or outside of any."""


class EngineError(StatehouseError):
    """Code that isn't Python broke, in a way that is no `Exception`: RocksDB's binding, for example, is Rust."""


class ContractError(StatehouseError):
    """A record or a name that breaks the contract of the topics."""


def shown(text: str) -> str:
    """Return a text of a caller's for a message: quoted, and only its beginning if it is long.

    An error of megabytes would take longer to make than the call, and not fit into the metadata that carry it.
    """
    if len(text) <= SHOWN_MAX:
        return repr(text)
    return f"{text[:SHOWN_MAX]!r}... ({len(text):,} characters)"


_OF_THE_INPUT: Final = (Reason.STORE_NOT_BUILT, Reason.PROCESSOR_AGE_EXCEEDS_BOUND, Reason.INPUT_BACKLOG_EXCEEDS_BOUND)
"""What all replicas of a store have in common, as it depends on the processor: the most telling first."""


class LookupFailure(StatehouseError):
    """A failed lookup, scan or count.

    Attributes:
        reason: why it failed.
        message: text for people.
        metadata: the variable parts of the message, by name.
        route: the newest route the answering process knows (wrong-owner errors).
        candidates: every replica that a router considered, with its verdict.

    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        metadata: Mapping[str, str] | None = None,
        *,
        route: errors_pb2.Route | None = None,
        candidates: Sequence[errors_pb2.Candidate] = (),
    ) -> None:
        """Take the reason, the message and its details."""
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.metadata = dict(metadata or {})
        self.route = route
        self.candidates = tuple(candidates)

    def __repr__(self) -> str:
        """Show the reason and the message."""
        return f"{type(self).__name__}({self.reason.name}, {self.message!r})"

    def __str__(self) -> str:
        """Show the reason, the message and the candidates' verdicts in one line."""
        verdicts = "; ".join(
            f"{candidate.host.instance_id}: {reason_name(candidate.reason)} {candidate.detail}".rstrip()
            for candidate in self.candidates
        )
        return f"{self.reason.name}: {self.message}" + (f" [{verdicts}]" if verdicts else "")

    @property
    def code(self) -> int:
        """The gRPC status code (google.rpc.Code)."""
        return REASONS[self.reason].code

    @property
    def elsewhere(self) -> bool:
        """Whether another replica may succeed."""
        return REASONS[self.reason].elsewhere

    @property
    def remedy(self) -> str:
        """What to do. Where the processor is the cause, as of all replicas alike, what to do about that."""
        causes = {candidate.reason for candidate in self.candidates if candidate.reason}
        told = [reason for reason in _OF_THE_INPUT if reason.value in causes]
        return REASONS[told[0] if told and self.reason is Reason.NO_REPLICA_AVAILABLE else self.reason].remedy

    def to_proto(self) -> errors_pb2.LookupError:
        """Return the wire form."""
        return errors_pb2.LookupError(
            reason=self.reason.value,
            code=self.code,
            message=self.message,
            metadata=self.metadata,
            route=self.route,
            candidates=self.candidates,
        )

    @classmethod
    def from_proto(cls, error: errors_pb2.LookupError) -> LookupFailure:
        """Read the wire form; a reason from a newer version becomes INTERNAL and keeps its message."""
        return cls(
            reason_from_number(error.reason),
            error.message,
            error.metadata,
            route=error.route if error.HasField("route") else None,
            candidates=tuple(error.candidates),
        )


def unknown_store(name: str, epoch: int) -> LookupFailure:
    """Return the failure of a call about a store that an assignment doesn't have.

    It names no other store: a caller may have no right to know which there are.
    """
    message = f"no store {shown(name)} in the assignment of epoch {epoch}"
    return LookupFailure(Reason.UNKNOWN_STORE, message, {"store": name[:SHOWN_MAX], "epoch": str(epoch)})


def internal_error() -> LookupFailure:
    """Return the failure that callers get for a defect; only the log has the details."""
    return LookupFailure(Reason.INTERNAL, "internal error; the server's log has it")
