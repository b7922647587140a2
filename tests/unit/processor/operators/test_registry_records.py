"""What becomes of a record that a registry's serde can't decode."""

from __future__ import annotations

import json

import pytest

from processor.operators import registry_records
from statehouse.serdes import DocumentSerde, FetchNeeded, JsonValue, SerdeUnavailable
from statehouse.serdes.plugins import SerdeOptions


class Documents(DocumentSerde):
    """JSON; its schema has to be fetched first."""

    def __init__(self, *, is_up: bool = True) -> None:
        self.is_up, self.is_known = is_up, False

    def document(self, data: bytes) -> JsonValue:
        if not self.is_known:
            raise FetchNeeded("schema", self._fetch)
        if not self.is_up:
            raise SerdeUnavailable("the registry is down")
        if data.startswith(b"deep"):
            deep: JsonValue = []
            for _ in range(100_000):
                deep = [deep]
            return deep
        found: JsonValue = json.loads(data)
        return found

    def _fetch(self) -> None:
        self.is_known = True


@pytest.mark.parametrize(
    ("value", "document", "fault"),
    [(b"[1]", "[1]", None), (None, None, None), (b"no", None, "Expecting value"), (b"deep", None, "recursion")],
)
def test_a_record_at_fault_is_refused_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, value: bytes | None, document: str | None, fault: str | None
) -> None:
    serde = Documents()
    monkeypatch.setattr(registry_records, "_serdes", lambda _: lambda _name: serde)
    decoded = registry_records._decoded("any", SerdeOptions(), value) or {"document": None, "fault": None}
    assert decoded["document"] == document
    assert (fault or "") in (decoded["fault"] or "")
    assert (decoded["fault"] is None) is (fault is None)


def test_no_record_is_at_fault_while_the_registry_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    serde = Documents(is_up=False)
    monkeypatch.setattr(registry_records, "_serdes", lambda _: lambda _name: serde)
    with pytest.raises(SerdeUnavailable):
        registry_records._decoded("any", SerdeOptions(), b"[1]")
