"""Made-up snapshots, facts and lookups for `admitted`: most are answered, and each obstacle comes up."""

from __future__ import annotations

import random
from dataclasses import dataclass

from query_service.serving.admitted import Held
from statehouse.control.v1 import express_pb2, serving_pb2
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.express_cases import TEXTS

STORES = ("text", "long", "none", "Zoë")
_FORMS = {"long": express_pb2.KEY_FORM_LONG, "none": express_pb2.KEY_FORM_UNSPECIFIED}
NOW_US = 5_000_000_000
_EPOCHS = (1, 7, 8, 2**53)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A snapshot, what is held by number, and what processors have reported."""

    snapshot: serving_pb2.ServingSnapshot
    held: dict[int, Held]
    reports: dict[str, serving_pb2.ServingReport]


def made_fleet(rng: random.Random) -> Fleet:
    """Return what a node may have decided and know."""
    snapshot = serving_pb2.ServingSnapshot(number=1, epoch=rng.choice(_EPOCHS), max_batch_entries=100)
    held: dict[int, Held] = {}
    reports: dict[str, serving_pb2.ServingReport] = {}
    for name in STORES:
        if rng.random() < 0.1:
            continue
        store = snapshot.stores.add(
            name=name,
            key_form=_FORMS.get(name, express_pb2.KEY_FORM_TEXT),
            value_form=rng.randrange(6),
            partition_count=rng.randint(1, 5),
        )
        for partition in range(store.partition_count):
            if rng.random() < 0.1:
                continue
            number = len(held) + 1
            held[number] = _made_held(rng, number)
            stamp = types_pb2.ReplicaStamp(
                partition=partition,
                epoch=snapshot.epoch,
                host=types_pb2.Host(instance_id="n1", host="h", port=7000),
                role=types_pb2.ReplicaRole.ValueType(rng.choice((1, 2, 5))),
            )
            is_active = rng.random() < 0.6
            store.replicas.add(partition=partition, store=number, is_active=is_active, head=stamp.SerializeToString())
        if rng.random() < 0.8:
            reports[name] = serving_pb2.ServingReport(store=name)
            if rng.random() < 0.9:
                reports[name].at_us = NOW_US - rng.choice((-5, 0, 999, 1_000, 30_000_000))
                if rng.random() < 0.8:
                    reports[name].input_backlog = rng.choice((0, 1, 500))
    return Fleet(snapshot, held, reports)


def _made_held(rng: random.Random, number: int) -> Held:
    position = rng.choice((0, 1, 100, 2**62))
    if rng.random() < 0.05:
        return Held(position, None)
    end = serving_pb2.ServingEnd(
        store=number,
        offset=max(0, position + rng.choice((-1, 0, 0, 1, 10))),
        holds_until_us=NOW_US + rng.choice((-1, 0, 1, 10_000_000, 2**62)),
    )
    if rng.random() < 0.9:
        end.at_end_us = NOW_US - rng.choice((-1, 0, 1, 999, 1_000, 250_000, 60_000_000))
    return Held(position, end)


def made_lookup(rng: random.Random, fleet: Fleet) -> bytes:
    """Return a serialized Get, mostly one that is answered."""
    text = rng.choice(TEXTS) if rng.random() < 0.5 else str(rng.randrange(10_000))
    key = types_pb2.Key(text=text) if rng.random() < 0.7 else types_pb2.Key(raw=rng.randbytes(rng.randrange(20)))
    request = query_service_pb2.GetRequest(store=rng.choice((*STORES * 3, "unknown")), key=key)
    request.raw, request.json_text = rng.random() < 0.3, rng.random() < 0.3
    if rng.random() < 0.5:
        request.forwarding.epoch = fleet.snapshot.epoch if rng.random() < 0.8 else rng.choice(_EPOCHS)
        request.forwarding.hops = rng.choice((0, 1, 1, 1, 1, 2))
    if rng.random() < 0.5:
        _bound(rng, request)
    odd = rng.random()
    if odd < 0.02:
        request.ClearField("key")
    elif odd < 0.04:
        request.forwarding.traceparent = "00-1-1-01"
    elif odd < 0.05:
        request.forwarding.partition = 0
    elif odd < 0.06:
        request.forwarding.entry_keys = True
    return _as_sent(rng, request.SerializeToString(), odd)


def _as_sent(rng: random.Random, data: bytes, odd: float) -> bytes:
    """Return a request as it is, or as no serializer writes it."""
    if odd > 0.97:
        data += data  # each field twice
    elif odd > 0.94 and data:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(1) + data[at + 1 :]
    elif odd > 0.92:
        data = data[: rng.randrange(len(data) + 1)]
    elif odd > 0.90:
        data += b"\x98\x06\x01"  # a field of a later version
    return data


def _bound(rng: random.Random, request: query_service_pb2.GetRequest) -> None:
    bound = request.freshness
    if rng.random() < 0.3:
        bound.active_only = True
    for name, most in (
        ("max_lag", (0, 1, 100, 2**62)),
        ("max_staleness_ms", (0, 1, 250, 100_000)),
        ("max_processor_age_ms", (0, 1, 100_000)),
        ("max_input_backlog", (0, 1, 1_000)),
    ):
        if rng.random() < 0.3:
            setattr(bound, name, -1 if rng.random() < 0.05 else rng.choice(most))
    if rng.random() < 0.4:
        for _ in range(rng.randrange(4)):
            bound.at_least.positions.add(
                store=rng.choice(STORES),
                partition=rng.randrange(5),
                position=rng.choice((-1, 0, 1, 2, 100, 101, 2**62)),
            )
