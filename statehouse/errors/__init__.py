"""Errors and their reasons: one table for nodes, routers, clients and the documentation.

    StatehouseError
    ├── LookupFailure      a lookup, scan or count that failed, with its reason
    ├── ConfigurationError settings or a topology that can't work
    ├── UsageError         a client used where it can't work: after a fork, on another event loop
    └── ContractError      a record or name that breaks the contract of the topics

A `LookupFailure` crosses gRPC as status details and comes back as the same class, with the same reason.

Nothing here needs more than protobuf.
"""

from statehouse.errors.failures import (
    SHOWN_MAX,
    ConfigurationError,
    ContractError,
    EngineError,
    LookupFailure,
    StatehouseError,
    UsageError,
    internal_error,
    shown,
    unknown_store,
)
from statehouse.errors.reasons import (
    DETAILS_KEY,
    DOMAIN,
    REASONS,
    Reason,
    ReasonSpec,
    reason_from_number,
    reason_name,
    wire_name,
)

__all__ = (
    "DETAILS_KEY",
    "DOMAIN",
    "REASONS",
    "SHOWN_MAX",
    "ConfigurationError",
    "ContractError",
    "EngineError",
    "LookupFailure",
    "Reason",
    "ReasonSpec",
    "StatehouseError",
    "UsageError",
    "internal_error",
    "reason_from_number",
    "reason_name",
    "shown",
    "unknown_store",
    "wire_name",
)

# Tracebacks and pickles name them as people import them.
for _kind in (StatehouseError, ConfigurationError, ContractError, EngineError, LookupFailure, UsageError, Reason):
    _kind.__module__ = __name__
