"""Serdes: the bytes of keys and values in a changelog, and their forms for people and programs.

The layouts are the same as in Kafka's own serializers: string is UTF-8, long and double are 8 bytes big-endian.

Nothing here fetches a schema but the room `registry`.
"""

from statehouse.serdes.builtin import (
    PLUGIN_GROUP,
    SERDES,
    BytesSerde,
    DocumentSerde,
    DoubleSerde,
    FetchNeeded,
    JsonSerde,
    JsonValue,
    LongSerde,
    MissingSerde,
    Serde,
    SerdeUnavailable,
    StringSerde,
    exact_json,
    from_json_value,
    json_value,
    known_serde,
    named_floats,
    shown_key,
    shown_value,
)

__all__ = (
    "PLUGIN_GROUP",
    "SERDES",
    "BytesSerde",
    "DocumentSerde",
    "DoubleSerde",
    "FetchNeeded",
    "JsonSerde",
    "JsonValue",
    "LongSerde",
    "MissingSerde",
    "Serde",
    "SerdeUnavailable",
    "StringSerde",
    "exact_json",
    "from_json_value",
    "json_value",
    "known_serde",
    "named_floats",
    "shown_key",
    "shown_value",
)
