"""Made-up snapshots, facts and reads for `admitted`: most are answered, and each obstacle comes up."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

from query_service.serving.admitted import KINDS, Held, ReadRequest
from statehouse.contract.paging import next_page_token
from statehouse.control.v1 import engine_pb2, express_pb2, serving_pb2
from statehouse.keys import ordered as ordered_keys
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.express_cases import TEXTS

STORES = ("text", "long", "none", "Zoë")
METHODS: Final[tuple[type[ReadRequest], ...]] = tuple(KINDS)
"""What is asked. Each kind of stores has the names of STORES, the first one as they are, others with their number."""
_FORMS = {"long": express_pb2.KEY_FORM_LONG, "none": express_pb2.KEY_FORM_UNSPECIFIED}
QUERIES: Final = ("q", "ü", "")
NOW_US = 5_000_000_000
_EPOCHS = (1, 7, 8, 2**53)
_TIMES = (-(2**63), -1, 0, 1, 1_000, 2**62, 2**63 - 1)
_OTHER = engine_pb2.ENGINE_KIND_UNSPECIFIED
_KINDS = sorted(frozenset[engine_pb2.EngineKind.ValueType]().union(*KINDS.values()))


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
    for kind in (*_KINDS, _OTHER):
        for form in STORES:
            _add_store(rng, snapshot, kind, form, held)
    for store in snapshot.stores:
        if rng.random() < 0.8:
            report = reports[store.name] = serving_pb2.ServingReport(store=store.name)
            if rng.random() < 0.9:
                report.at_us = NOW_US - rng.choice((-5, 0, 999, 1_000, 30_000_000))
                if rng.random() < 0.8:
                    report.input_backlog = rng.choice((0, 1, 500))
    return Fleet(snapshot, held, reports)


def named(form: str, kind: engine_pb2.EngineKind.ValueType) -> str:
    """Return the name of the store of a kind whose keys have a form."""
    return form if kind == _KINDS[0] else f"{form}{kind}"


def _add_store(
    rng: random.Random,
    snapshot: serving_pb2.ServingSnapshot,
    kind: engine_pb2.EngineKind.ValueType,
    form: str,
    held: dict[int, Held],
) -> None:
    if rng.random() < 0.1:
        return
    store = snapshot.stores.add(
        name=named(form, kind),
        kind=kind,
        window_size_ms=rng.choice((0, 60_000)),
        key_form=_FORMS.get(form, express_pb2.KEY_FORM_TEXT),
        value_form=rng.randrange(6),
        partition_count=rng.randint(1, 5),
        is_global=rng.random() < 0.2,
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


def _made_held(rng: random.Random, number: int) -> Held:
    position = rng.choice((0, 1, 100, 2**62))
    if rng.random() < 0.05:
        return Held(position, None)
    moments = None if rng.random() < 0.1 else _made_moments(rng, number, position)
    end = serving_pb2.ServingEnd(
        store=number,
        offset=max(0, position + rng.choice((-1, 0, 0, 1, 10))),
        holds_until_us=NOW_US + rng.choice((-1, 0, 1, 10_000_000, 2**62)),
    )
    if rng.random() < 0.9:
        end.at_end_us = NOW_US - rng.choice((-1, 0, 1, 999, 1_000, 250_000, 60_000_000))
    return Held(position, end, moments)


def _made_moments(rng: random.Random, number: int, position: int) -> serving_pb2.ServingMoments:
    """Return what a replica shows; some batches end behind what the program has."""
    moments = serving_pb2.ServingMoments(store=number, query_id=QUERIES[0] if rng.random() < 0.9 else QUERIES[1])
    end = max(0, position - rng.choice((0, 1, 5, 100)))
    for batch_id in sorted(rng.sample(range(6), rng.choice((0, 1, 3, 5)))):
        moments.batch_ids.append(batch_id)
        moments.ends.append(end)
        end += rng.choice((0, 0, 1, 2, 50))
    return moments


def made_read(rng: random.Random, fleet: Fleet, method: type[ReadRequest]) -> bytes:
    """Return a serialized request, mostly one that is answered."""
    kind = rng.choice(sorted(KINDS[method]) if rng.random() < 0.95 else [*_KINDS, _OTHER])
    request: Any = method(store=named(rng.choice((*STORES * 3, "unknown")), kind))
    fields = request.DESCRIPTOR.fields_by_name
    if "key" in fields:
        request.key.CopyFrom(_made_key(rng))
    else:
        _place(rng, request)
    _show(rng, request)
    if rng.random() < 0.5:
        request.forwarding.epoch = fleet.snapshot.epoch if rng.random() < 0.8 else rng.choice(_EPOCHS)
        request.forwarding.hops = rng.choice((0, 1, 1, 1, 1, 2))
    rng.choice((_bound, _bound, _moment_alone, _no_bound, _no_bound))(rng, request)
    odd = rng.random()
    if odd < 0.02:
        request.ClearField("key" if "key" in fields else "partition")
    elif odd < 0.04:
        request.forwarding.traceparent = "00-1-1-01"
    elif odd < 0.05:
        request.forwarding.partition = 0
    elif odd < 0.06:
        request.forwarding.entry_keys = True
    if "page_token" in fields and rng.random() < 0.3:
        request.page_token = _made_token(rng, request)
    return _as_sent(rng, request.SerializeToString(), odd)


def _show(rng: random.Random, request: Any) -> None:
    """Say what is shown, and the times that it is of."""
    fields = request.DESCRIPTOR.fields_by_name
    if "raw" in fields:
        request.raw, request.json_text = rng.random() < 0.3, rng.random() < 0.3
    if "exact" in fields:
        request.exact = rng.random() < 0.5
    if "reverse" in fields:
        request.reverse, request.page_size = rng.random() < 0.3, rng.choice((0, 0, 1, 100, 1_001, 2**32 - 1))
    for name in ("from_ms", "to_ms", "as_of_ms"):
        if name in fields and rng.random() < (0.02 if "from_key" in fields else 0.3):
            setattr(request, name, rng.choice(_TIMES))


def _made_key(rng: random.Random) -> types_pb2.Key:
    text = rng.choice(TEXTS) if rng.random() < 0.5 else str(rng.randrange(-5_000, 5_000))
    return types_pb2.Key(text=text) if rng.random() < 0.7 else types_pb2.Key(raw=rng.randbytes(rng.randrange(20)))


def _place(rng: random.Random, request: Any) -> None:
    """Say what partitions, and keys, a read is of that has no key of its own."""
    is_scan = isinstance(request, query_service_pb2.ScanRequest)
    several = is_scan and rng.random() < 0.4
    if several:
        request.partitions.extend(rng.choices(range(4), k=rng.randrange(4)))
    if not several or rng.random() < 0.05:
        request.partition = rng.randrange(4)
    if not is_scan:
        return
    if rng.random() < 0.1:
        request.prefix.CopyFrom(_made_key(rng))
    for name in ("from_key", "to_key"):
        if rng.random() < 0.1:
            getattr(request, name).CopyFrom(_made_key(rng) if rng.random() < 0.95 else types_pb2.Key())
    request.forwarding.entry_keys = rng.random() < 0.3


def _made_token(rng: random.Random, request: Any) -> str:
    """Return a token, mostly the one that a page of this request may have."""
    last = rng.randbytes(rng.randrange(5))
    if "key" in request.DESCRIPTOR.fields_by_name and rng.random() < 0.9:
        last = ordered_keys.escaped(request.key.raw or request.key.text.encode()) + last
    moment = (
        types_pb2.Moment(query_id=rng.choice(QUERIES), batch_id=rng.choice((-1, *range(20))))
        if rng.random() < 0.3
        else None
    )
    token = next_page_token(request, last, moment)
    odd = rng.random()
    if odd < 0.05:
        return rng.choice(("damaged", "AAAA", "CgFhEAE=", token[:-1], f"{token[:2]}\n{token[2:]}", f"{token}\r"))
    if odd < 0.1:
        at = rng.randrange(len(token))
        return token[:at] + rng.choice("AB-_=ä") + token[at + 1 :]
    if odd < 0.15:
        request.json_text = not request.json_text  # the token is of another scan
    return token


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


def _bound(rng: random.Random, request: Any) -> None:
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
    if rng.random() < 0.3:
        _moment(rng, bound.moment)
    if rng.random() < 0.4:
        for _ in range(rng.randrange(4)):
            bound.at_least.positions.add(
                store=request.store if rng.random() < 0.5 else rng.choice(STORES),
                partition=rng.randrange(5),
                position=rng.choice((-1, 0, 1, 2, 100, 101, 2**62)),
            )


def _no_bound(_rng: random.Random, _request: Any) -> None:
    """Say nothing of how fresh it is to be."""


def _moment_alone(rng: random.Random, request: Any) -> None:
    """Say which batch a read is to be of, and perhaps what the caller has seen before."""
    _moment(rng, request.freshness.moment)
    for partition in range(rng.choice((0, 0, 5))):
        position = rng.choice((0, 1, 95, 98, 99, 100))
        request.freshness.at_least.positions.add(store=request.store, partition=partition, position=position)


def _moment(rng: random.Random, bound: types_pb2.MomentBound) -> None:
    """Say which batch a read is to be of."""
    odd = rng.random()
    if odd < 0.02:
        bound.wait_ms = 1  # of none
        return
    if odd < 0.5:
        bound.newest = rng.random() < 0.95
    else:
        named = bound.at_least if odd < 0.75 else bound.exactly
        for _ in range(101 if rng.random() < 0.02 else rng.randrange(4)):
            batch_id = -1 if rng.random() < 0.02 else rng.randrange(6)
            named.moments.add(query_id=rng.choice((QUERIES[0], *QUERIES)), batch_id=batch_id)
        named.SetInParent()
    if rng.random() < 0.3:
        bound.wait_ms = rng.choice((0, 1, 2**32 - 1))
