"""The node's view of the fleet: what it leaves out, and what a lookup of that is told."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from statehouse.assignment import Assignment
from statehouse.errors import LookupFailure, Reason
from statehouse.topology import StoreSpec
from statehouse.v1 import types_pb2


@pytest.mark.parametrize("field", ["key_serde", "value_serde"])
def test_a_serde_of_a_newer_version_costs_its_own_store_only(field: str) -> None:
    stores = {
        "counts": StoreSpec("counts", "topic", 1, 0),
        "newer": StoreSpec("newer", "topic", 1, 0, **{field: "protobuf9"}),
    }
    admission = Admission(types_pb2.Host(), {}, lambda: True, {})
    admission.view = view_of(Assignment(1, stores=MappingProxyType(stores)), {})
    assert admission.store("counts").spec.name == "counts"
    with pytest.raises(LookupFailure, match="newer can't be served by this version: unknown serde 'protobuf9'") as told:
        admission.store("newer")
    assert told.value.reason is Reason.TASK_FAILED
    with pytest.raises(LookupFailure, match="no store 'other'") as told:
        admission.store("other")
    assert told.value.reason is Reason.UNKNOWN_STORE
