"""What a query writes: changelogs of stores, and topics.

Nothing here reads a source.
"""

from processor.outputs.declared import (
    AVRO,
    Output,
    OutputMode,
    Query,
    SessionOptions,
    StoreOptions,
    TopicOptions,
    VersionedOptions,
    WindowOptions,
)

__all__ = (
    "AVRO",
    "Output",
    "OutputMode",
    "Query",
    "SessionOptions",
    "StoreOptions",
    "TopicOptions",
    "VersionedOptions",
    "WindowOptions",
)
