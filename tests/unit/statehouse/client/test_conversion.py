"""Between the wire and Python values."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statehouse.cli.fleet import _task_row
from statehouse.client import Freshness, MomentBound, Token, conversion
from statehouse.serdes import SERDES
from statehouse.v1 import fleet_service_pb2, query_service_pb2, types_pb2

json_documents = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_documents)
def test_json_comes_back_as_it_was_stored(document: object):
    wire = SERDES["json"].value(json.dumps(document).encode())

    assert conversion.from_value(wire) == document


@pytest.mark.parametrize(
    ("stored", "shown"),
    [(b"4000", 4000), (b"9000.0", 9000), (b"12.5", 12.5), (b"-3", -3), (b"1e300", 1e300), (b"0.1", 0.1)],
)
def test_a_number_without_a_fraction_is_an_integer(stored: bytes, shown: object):
    number = conversion.from_value(SERDES["json"].value(stored))

    assert number == shown
    assert type(number) is type(shown)


def test_field_names_are_sorted_as_the_wire_has_no_order():
    wire = SERDES["json"].value(b'{"b":1,"c":2,"a":3}')

    assert list(conversion.from_value(wire)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("wire", "shown"),
    [
        (types_pb2.Value(text="x"), "x"),
        (types_pb2.Value(long=-(2**63)), -(2**63)),
        (types_pb2.Value(double=2.0), 2.0),
        (types_pb2.Value(raw=b"\xff"), b"\xff"),
        (types_pb2.Value(), None),
    ],
)
def test_other_values_keep_their_type(wire: types_pb2.Value, shown: object):
    value = conversion.from_value(wire)

    assert value == shown
    assert type(value) is type(shown)


@pytest.mark.feature("keys-text-parsed")
def test_a_key_is_text_or_bytes():
    assert conversion.from_key(types_pb2.Key(raw=b"")) == b""
    assert conversion.from_key(types_pb2.Key(text="")) == ""


def test_no_bounds_are_no_freshness_and_zero_is_a_bound():
    assert conversion.to_freshness(Freshness(), "s") is None
    bound = conversion.to_freshness(Freshness(max_lag=0), "s")
    assert bound is not None
    assert bound.HasField("max_lag")
    assert not bound.HasField("max_staleness_ms")


def test_every_bound_is_sent():
    bounds = Freshness(True, 1, 2, Token({("s", 0): 3}), 4, 5, MomentBound(), 6)
    assert all(getattr(bounds, each.name) for each in fields(bounds))
    sent = conversion.to_freshness(bounds, "s")
    assert sent is not None
    assert Freshness.from_proto(sent) == bounds


@pytest.mark.feature("answer-says-partition")
def test_unknown_is_none_and_never_zero():
    response = query_service_pb2.GetResponse(found=False, replica=types_pb2.ReplicaStamp(partition=0, epoch=1))

    answer = conversion.from_get(response, "s")

    assert (answer.position, answer.lag, answer.staleness_ms) == (None, None, None)
    assert (answer.processor_age_ms, answer.input_backlog) == (None, None)
    assert answer.found is False


@pytest.mark.feature("clients-command-line")
def test_the_age_of_the_data_goes_both_ways():
    stamp = types_pb2.ReplicaStamp(partition=0, epoch=1, processor_age_ms=1_200, input_backlog=0)
    for shown in (
        conversion.from_get(query_service_pb2.GetResponse(replica=stamp), "s"),
        conversion.from_stamp(stamp),
    ):
        assert (shown.processor_age_ms, shown.input_backlog) == (1_200, 0)
    bound = conversion.to_freshness(Freshness(max_processor_age_ms=0, max_input_backlog=7), "s")
    assert bound == types_pb2.Freshness(max_processor_age_ms=0, max_input_backlog=7)


def test_a_role_of_a_newer_version_is_shown_by_its_number():
    assert conversion.role_name(types_pb2.REPLICA_ROLE_WARM_UP) == "WARM_UP"
    assert conversion.role_name(99) == "ROLE_99"


def test_a_task_without_an_active_has_none():
    fleet = conversion.from_fleet(fleet_service_pb2.GetFleetResponse(tasks=[fleet_service_pb2.TaskInfo(task="0_1")]))

    assert fleet.tasks[0].active is None


def test_a_copy_of_an_ephemeral_store_says_since_when_it_is():
    stamp = types_pb2.ReplicaStamp(partition=0, epoch=1, ephemeral=True, since_ms=7)

    assert conversion.from_get(query_service_pb2.GetResponse(found=False, replica=stamp), "s").since_ms == 7
    assert conversion.from_stamp(types_pb2.ReplicaStamp(partition=0)).since_ms is None


def test_a_global_store_is_shown_with_all_its_copies():
    store = fleet_service_pb2.StoreInfo(name="players", kind="key-value", **{"global": True})
    assert conversion.from_store(store).moments == "", "an earlier router says nothing of them"
    store.no_moments = "it is global"
    assert conversion.from_store(store).moments == "none: it is global"
    batch = fleet_service_pb2.StoreInfo(name="players", newest_batch=0)
    assert conversion.from_store(batch).moments == "newest batch 0"
    replicas = [
        fleet_service_pb2.ReplicaReport(
            instance_id=name, role=types_pb2.REPLICA_ROLE_GLOBAL, state=state, lag=None if state == "restoring" else 2
        )
        for name, state in (("a", "running"), ("b", "restoring"))
    ]
    task = fleet_service_pb2.TaskInfo(task="global/players", replicas=replicas)

    fleet = conversion.from_fleet(fleet_service_pb2.GetFleetResponse(stores=[store], tasks=[task]))

    assert (fleet.stores[0].is_global, fleet.stores[0].sub_topology) == (True, None)
    assert _task_row(fleet.tasks[0]) == ("global/players", "1 of 2 running", "-", ("a", "b"), (), None, "-")


def test_answers_of_a_batch_are_what_each_would_be_alone():
    stamps = [types_pb2.ReplicaStamp(partition=1, epoch=2, position=9, host=types_pb2.Host(instance_id="a"))] * 2
    stamps += [types_pb2.ReplicaStamp(partition=1, epoch=2, position=8), types_pb2.ReplicaStamp(partition=1, epoch=2)]
    responses = [
        query_service_pb2.GetResponse(
            found=True, value=types_pb2.Value(long=number), replica=stamp, timestamp_ms=number
        )
        for number, stamp in enumerate(stamps)
    ]
    stores = ["s", "other", "s", "s"]
    results = [query_service_pb2.BatchGetResult(response=response) for response in responses]

    alone = [conversion.from_get(response, store) for response, store in zip(responses, stores, strict=True)]

    assert conversion.from_batch_get(results, stores) == alone
    assert alone[0].token != alone[1].token, "a token names its store"
