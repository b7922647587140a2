"""The form of a controller's record in the assignment topic: who acts, and what it plans by.

The record is written in a transaction with the controllers' transactional id. So only the
controller that may publish can write it, and a reader of it has read all assignments before it.
"""

from __future__ import annotations

from collections.abc import Callable

from processor.ownership.declared_settings import declared_settings, settings_of_record
from processor.ownership.machine.takeover import ControllerRecord
from statehouse.contract.assignment import CONTROLLER_KEY, read_controller_record
from statehouse.contract.formats import ASSIGNMENT, NewerFormatError
from statehouse.control.v1 import assignment_pb2
from statehouse.errors import ConfigurationError, ContractError


def encode_controller(record: ControllerRecord) -> tuple[bytes, bytes]:
    """Return the key and the value of the record."""
    return CONTROLLER_KEY, _bytes(_message(record), ASSIGNMENT.written)


def decode_controller(value: bytes) -> ControllerRecord:
    """Read the record.

    Raises:
        NewerFormatError: it says more than this version knows.
        ContractError: it can't be read, or its settings can't work.

    """
    whole = read_controller_record(value)
    message = whole.controller
    given = {field.name: getattr(message.settings, field.name) for field in message.settings.DESCRIPTOR.fields}
    try:
        settings = settings_of_record(given)
    except ConfigurationError as error:
        raise ContractError(f"controller {message.controller} has settings that can't work: {error}") from error
    record = ControllerRecord(
        message.controller, message.host, message.is_standby, message.heartbeat, settings, message.has_stopped
    )
    # An earlier format, which is read, is as good.
    if _bytes(_message(record), whole.format_version) != whole.SerializeToString(deterministic=True):
        raise NewerFormatError(f"controller {message.controller} is of another version: upgrade this one, too")
    return record


def read_controller(
    value: bytes | None, known: ControllerRecord | None, on_unreadable: Callable[[str, Exception], None]
) -> ControllerRecord | None:
    """Return who acts, by the record that is next in the log. `known`: who did before it.

    None for a tombstone, and for another version's record. One that can't be true is no controller's, and says nothing.
    `on_unreadable` hears of each that is skipped.
    """
    try:
        return None if value is None else decode_controller(value)
    except ContractError as error:
        on_unreadable(CONTROLLER_KEY.decode(), error)
        return None if isinstance(error, NewerFormatError) else known


def _message(record: ControllerRecord) -> assignment_pb2.Controller:
    return assignment_pb2.Controller(
        controller=record.controller,
        host=record.host,
        is_standby=record.is_standby,
        heartbeat=record.heartbeat,
        has_stopped=record.has_stopped,
        settings=assignment_pb2.ControllerSettings(**declared_settings(record.settings)),
    )


def _bytes(message: assignment_pb2.Controller, format_version: int) -> bytes:
    record = assignment_pb2.AssignmentRecord(controller=message, format_version=format_version)
    return record.SerializeToString(deterministic=True)
