"""JSON Schema: JSON with the id of its schema in front. The document says all, so no schema is fetched."""

from __future__ import annotations

import json

from statehouse.serdes import DocumentSerde, JsonValue
from statehouse.serdes.plugins import SerdeOptions
from statehouse.serdes.registry.wire_format import unframed


class JsonSchemaSerde(DocumentSerde):
    """JSON in the registry's wire format. Writers check documents by their schema; readers show them as they are."""

    def __init__(self, options: SerdeOptions) -> None:
        """Make the serde; it needs none of the options."""

    def document(self, data: bytes) -> JsonValue:
        """Decode."""
        _, payload = unframed(data)
        found: JsonValue = json.loads(payload)
        return found
