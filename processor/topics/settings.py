"""What the settings of an output's topic are to be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from processor.outputs import Output
from processor.ownership.declarations import StoreDeclaration
from processor.settings import ProcessorSettings
from statehouse.contract.topology import SESSION, VERSIONED, WINDOW
from statehouse.errors import ConfigurationError

# An event may have any time; by default the broker refuses times more than an hour ahead of its clock.
ANY_TIMESTAMP: Final = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
# Retention by event time would delete replayed events from years ago immediately, and events with a time in the
# future never.
_APPEND_TIME: Final = {"message.timestamp.type": "LogAppendTime"}
DEAD_LETTERS_CONFIG: Final = {"cleanup.policy": "delete", **_APPEND_TIME}
# The age of a segment counts from its latest timestamp: the last transaction marker in it, by the broker's clock. With
# old event times the broker would roll a segment early, and leave one with event times only (docs/adr/0004).
_ROLLED_BY_SIZE_ALONE: Final = {"segment.ms": str(2**63 - 1)}
# Kafka Streams adds the same day to the history retention of a versioned store's changelog.
_VERSIONS_KEPT_LONGER_MS: Final = 24 * 60 * 60 * 1000
_MIN_LAG: Final = "min.compaction.lag.ms"
_MAX_LAG: Final = "max.compaction.lag.ms"


def output_topic_config(output: Output, settings: ProcessorSettings, *, exists: bool) -> dict[str, str]:
    """Return the settings for an output's topic: our defaults, overridden by the output's `config`.

    An existing topic without a store belongs to somebody else: it gets only the settings that the code names.
    """
    if output.declaration is None:
        return ({} if exists else ANY_TIMESTAMP) | dict(output.config)
    return _store_topic_config(output.declaration, settings) | dict(output.config)


def check_compaction_lags(output: Output, settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError if records of a topic would have to be compacted before they may be.

    Kafka refuses that too, but doesn't say where the other of the two settings comes from.
    """
    longest, shortest = (_milliseconds(output, name, settings.get(name)) for name in (_MAX_LAG, _MIN_LAG))
    if longest is None or shortest is None or longest >= shortest:
        return
    store = output.declaration
    if _MIN_LAG in output.config:
        lower = "lower the second"
    elif store is not None and store.kind == VERSIONED and not store.ephemeral:
        lower = "lower the store's history retention, which the second is a day longer than"
    elif store is not None and not store.ephemeral:
        lower = f"name {_MIN_LAG} in the store's config too"
    else:
        lower = f"name {_MIN_LAG} in its config too"
    raise ConfigurationError(
        f"topic {output.topic}: {_MAX_LAG}={longest} is below {_MIN_LAG}={shortest}: records would have to be "
        f"compacted before they may be. Raise the first, or {lower}"
    )


def _milliseconds(output: Output, name: str, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return int(value)
    except ValueError:
        raise ConfigurationError(f"topic {output.topic}: {name}={value!r} must be a number of milliseconds") from None


def _store_topic_config(declaration: StoreDeclaration, settings: ProcessorSettings) -> dict[str, str]:
    """Return the settings for a store's topic.

    If the broker deletes by time, records have the time of writing, never the event time (docs/adr/0004). If it only
    compacts, records have the event time.
    """
    lag_ms = settings.min_compaction_lag_ms
    if declaration.ephemeral:
        retention = str(settings.updates_retention_ms)
        # The broker deletes whole segments, when the last record is old enough; by default it fills one for a week.
        ours = {"cleanup.policy": "delete", "retention.ms": retention, "segment.ms": retention, **_APPEND_TIME}
    elif declaration.built_on in {WINDOW, SESSION}:
        retention_ms = declaration.retention_ms + settings.changelog_additional_retention_ms
        ours = {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms), **_APPEND_TIME}
    else:
        ours = {"cleanup.policy": "compact", **ANY_TIMESTAMP}
        if declaration.kind == VERSIONED:
            lag_ms = max(lag_ms, declaration.retention_ms + _VERSIONS_KEPT_LONGER_MS)
            ours |= _ROLLED_BY_SIZE_ALONE
    if not declaration.ephemeral:
        ours[_MIN_LAG] = str(lag_ms)
    return ours
