"""What happens when people's own Python raises an exception for a record. Pure.

The choice is Kafka Streams' of its processing exception handlers (KIP-1033): fail, or go on without the record.
"""

from __future__ import annotations

import traceback
from enum import StrEnum
from typing import Final

from processor.spark.failures import RECORD_NOTE, where_raised

_DETAIL_CHARACTERS_MAX: Final = 500


class OnError(StrEnum):
    """What an operator does with a record for which people's own Python raises an exception."""

    FAIL = "fail"
    """The query dies, and its failure names the record."""
    DEAD_LETTER = "dead_letter"
    """The record becomes a dead letter, `raised`, and changes nothing; the others of its batch go on."""


def name_record(error: Exception, topic: str | None, partition: int, offset: int) -> None:
    """Note in an exception which record was processed; a traceback shows the note."""
    error.add_note(f"{RECORD_NOTE}{topic}/{partition}/{offset}")


def said_of(error: Exception) -> str:
    """Return an exception's class, where it was raised, and its message: the detail of a dead letter."""
    where = where_raised("".join(traceback.format_exception(error)))
    return f"{where}: {error}"[:_DETAIL_CHARACTERS_MAX]
