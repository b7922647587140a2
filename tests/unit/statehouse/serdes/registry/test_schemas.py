"""When a schema is fetched, how long it is remembered, and what is said without it."""

from __future__ import annotations

import pytest

from statehouse.errors import Reason
from statehouse.serdes import FetchNeeded, SerdeUnavailable
from statehouse.serdes.registry.schemas import Schemas


class Registry:
    """A registry with schemas by id; one that is None can't be reached."""

    def __init__(self) -> None:
        self.now, self.asked = 100.0, 0
        self.has: dict[int, str] | None = {7: "seven"}
        self.schemas = Schemas(self._fetch, lambda: self.now)

    def _fetch(self, schema_id: int) -> str:
        self.asked += 1
        if self.has is None:
            raise SerdeUnavailable("the registry is down")
        if schema_id not in self.has:
            raise ValueError(f"the registry has no schema {schema_id}")
        return self.has[schema_id]

    def decoder(self, schema_id: int) -> str:
        """Ask, and fetch if that is needed, as a node does."""
        try:
            return self.schemas.decoder(schema_id)
        except FetchNeeded as needed:
            needed.fetch()
            return self.schemas.decoder(schema_id)


def test_a_schema_is_fetched_once_and_stays_while_the_registry_is_down() -> None:
    registry = Registry()
    with pytest.raises(FetchNeeded):
        registry.schemas.decoder(7)
    assert registry.asked == 0
    assert registry.decoder(7) == "seven"
    registry.has, registry.now = None, 1e9
    assert registry.schemas.decoder(7) == "seven"
    assert registry.asked == 1


def test_an_unknown_id_is_remembered_for_a_while_and_may_be_registered_then() -> None:
    registry = Registry()
    for _ in range(3):
        with pytest.raises(ValueError, match="no schema 8"):
            registry.decoder(8)
    assert registry.asked == 1
    registry.has = {8: "eight"}
    registry.now += 11
    assert registry.decoder(8) == "eight"


def test_a_registry_that_is_down_is_asked_nothing_for_a_while() -> None:
    registry = Registry()
    registry.has = None
    for schema_id in (1, 2, 3):
        with pytest.raises(SerdeUnavailable, match=f"schema {schema_id} is not known here") as told:
            registry.decoder(schema_id)
        assert told.value.reason is Reason.SERDE_UNAVAILABLE
    assert registry.asked == 1
    registry.has, registry.now = {1: "one"}, registry.now + 2
    assert registry.decoder(1) == "one"


def test_equal_needs_are_equal_and_others_are_not() -> None:
    first, second = Registry().schemas, Registry().schemas
    needs = []
    for schemas, schema_id in ((first, 1), (first, 1), (first, 2), (second, 1)):
        with pytest.raises(FetchNeeded) as needed:
            schemas.decoder(schema_id)
        needs.append(needed.value.need)
    assert needs[0] == needs[1]
    assert len(set(needs)) == 3
