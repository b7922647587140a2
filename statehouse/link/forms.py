"""How the program reads keys and shows values on its own, by their serdes. What it can't is for Python to do."""

from __future__ import annotations

from typing import Final

from statehouse.control.v1 import express_pb2, serving_pb2
from statehouse.serdes import BytesSerde, DoubleSerde, JsonSerde, LongSerde, Serde, StringSerde

_KEYS: Final[dict[type, express_pb2.KeyForm.ValueType]] = {
    StringSerde: express_pb2.KEY_FORM_TEXT,
    LongSerde: express_pb2.KEY_FORM_LONG,
}
_VALUES: Final[dict[type, serving_pb2.ValueForm.ValueType]] = {
    BytesSerde: serving_pb2.VALUE_FORM_RAW,
    StringSerde: serving_pb2.VALUE_FORM_TEXT,
    LongSerde: serving_pb2.VALUE_FORM_LONG,
    DoubleSerde: serving_pb2.VALUE_FORM_DOUBLE,
    JsonSerde: serving_pb2.VALUE_FORM_JSON,
}


def key_form(serde: Serde | None) -> express_pb2.KeyForm.ValueType:
    """Return how text keys are serialized, as far as the program can do it."""
    return _KEYS.get(type(serde), express_pb2.KEY_FORM_UNSPECIFIED)


def value_form(serde: Serde) -> serving_pb2.ValueForm.ValueType:
    """Return how values are shown, as far as the program can do it."""
    return _VALUES.get(type(serde), serving_pb2.VALUE_FORM_UNSPECIFIED)
