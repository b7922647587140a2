"""The store: a key-value store of serialized sketches that estimates how often an item was counted.

Its values are the whole sketches in the changelog, so it restores, compacts and moves like any other store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from query_service.stores.engine import Engine
from query_service.stores.key_value import KeyValueStore
from statehouse.contract.topology import StoreSpec
from statehouse.errors import LookupFailure, Reason
from statehouse.serdes import JsonValue

from .sketches import estimate_of, read_sketch

ESTIMATE: Final = "estimate"


class CountMinSketchStore(KeyValueStore):
    """Sketches by key, with one custom query."""

    query_names = (ESTIMATE,)

    def __init__(self, spec: StoreSpec, engine: Engine) -> None:
        super().__init__(engine)
        self._name = spec.name

    def query(self, name: str, key: bytes, arguments: Mapping[str, JsonValue]) -> JsonValue:  # noqa: ARG002 - the only one
        """Answer `estimate` with {"item": text}: how often it was counted under the key; null without a sketch.

        The true count is at most `estimate` and `upper`, which are the same for this sketch, and at least `lower` with
        its confidence.

        Raises:
            LookupFailure: INVALID_REQUEST, or VALUE_UNDECODABLE if the value is no sketch.

        """
        item = arguments.get("item")
        if not isinstance(item, str) or len(arguments) != 1:
            raise LookupFailure(Reason.INVALID_REQUEST, f'{ESTIMATE} takes {{"item": "<text>"}} and nothing else')
        data = self.get(key)
        if data is None:
            return None
        try:
            found = estimate_of(read_sketch(data), item)
        except ValueError as error:
            raise LookupFailure(Reason.VALUE_UNDECODABLE, str(error), {"store": self._name}) from error
        return {"estimate": found.estimate, "lower": found.lower, "upper": found.estimate}
