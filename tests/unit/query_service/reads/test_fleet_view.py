"""The node's view of the fleet: what it leaves out, and how a lookup of that fails."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from query_service.reads.admission import Admission
from query_service.reads.decoded_values import decoded_value
from query_service.reads.fleet_view import view_of
from statehouse.contract.assignment import Assignment
from statehouse.contract.paging import serialized_key
from statehouse.contract.topology import StoreSpec
from statehouse.errors import ConfigurationError, LookupFailure, Reason
from statehouse.serdes import Serde, known_serde
from statehouse.v1 import types_pb2


def refused(name: str) -> Serde:
    raise ConfigurationError(f"several packages have a serde {name!r}")


@pytest.mark.parametrize("field", ["key_serde", "value_serde"])
def test_a_plug_in_that_fails_costs_its_own_store_only(field: str) -> None:
    stores = {
        "counts": StoreSpec("counts", "topic", 1, 0),
        "newer": StoreSpec("newer", "topic", 1, 0, **{field: "protobuf9"}),
    }
    admission = Admission(types_pb2.Host(), {}, lambda: True, {})
    serdes = lambda name: refused(name) if name == "protobuf9" else known_serde(name)  # noqa: E731 - said once
    admission.view = view_of(Assignment(1, stores=MappingProxyType(stores)), {}, serdes)
    assert admission.store("counts").spec.name == "counts"
    with pytest.raises(
        LookupFailure, match="newer can't be served by this version: several packages have a serde 'protobuf9'"
    ) as told:
        admission.store("newer")
    assert told.value.reason is Reason.TASK_FAILED
    with pytest.raises(LookupFailure, match="no store 'other'") as told:
        admission.store("other")
    assert told.value.reason is Reason.UNKNOWN_STORE
    assert "counts" not in str(told.value), "the caller may have no right to list the stores"


def test_a_serde_without_a_plug_in_costs_typed_reads_only() -> None:
    spec = StoreSpec("odd", "topic", 1, 0, key_serde="morse", value_serde="morse")
    admission = Admission(types_pb2.Host(), {}, lambda: True, {})
    admission.view = view_of(Assignment(1, stores=MappingProxyType({"odd": spec})), {})
    served = admission.store("odd")
    assert serialized_key(types_pb2.Key(raw=b"k"), served.key_serde) == b"k"
    with pytest.raises(LookupFailure, match=r"no package installed here has the serde 'morse'.*send raw bytes") as told:
        serialized_key(types_pb2.Key(text="k"), served.key_serde)
    assert told.value.reason is Reason.INVALID_KEY
    assert decoded_value(served, b"v", raw=True).raw == b"v"
    with pytest.raises(LookupFailure, match="raw reads work") as told:
        decoded_value(served, b"v", raw=False)
    assert told.value.reason is Reason.SERDE_UNAVAILABLE
