"""Made-up fleets and requests for the express way: most are plain and well, and each way not to be comes up."""

from __future__ import annotations

import random
from collections.abc import Sequence

from router.choice.candidates import Suspicion
from router.fleet.table import RoutingTable, compile_table
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import GlobalReport, Member, NodeState, ReplicaReport, StorePosition, TaskState
from statehouse.contract.paging import next_page_token
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.errors import Reason
from statehouse.v1 import query_service_pb2, types_pb2

SERDES = ("string", "long", "double", "bytes", "json")
STORES = (*(f"of-{serde}" for serde in SERDES), "Zoë")
GLOBAL = "everywhere"
RACKS = ("east", "west")
TEXTS = (
    "",
    "a",
    "1000",
    "-7",
    "007",
    "-0",
    "+5",
    " 5",
    "5_0",
    "5 ",
    "\u0665",
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "Zoë",
    "½",
)

SUSPICIONS = (
    Suspicion(Reason.UNREACHABLE, "gone"),
    Suspicion(Reason.ATTEMPT_TIMED_OUT, "slow", late_after_s=0.02),
    Suspicion(Reason.ATTEMPT_TIMED_OUT, "silent"),
)


def made_table(rng: random.Random, ports: dict[str, int]) -> tuple[RoutingTable, dict[str, Suspicion]]:
    """Return a fleet of these nodes as a router sees it, in a rack or in none, and who is under suspicion."""
    count, names = rng.randint(1, 6), list(ports)
    tasks = {
        TaskId(0, number): TaskAssignment(holders[0], tuple(holders[1:2]), tuple(holders[2:3]))
        for number in range(count)
        if (holders := rng.sample(names, rng.randint(1, min(3, len(names))))) and rng.random() < 0.95
    }
    stores = {
        name: StoreSpec(name, f"{name}-changelog", count, 0, key_serde=serde)
        for name, serde in zip(STORES, (*SERDES, "string"), strict=True)
    }
    stores[GLOBAL] = StoreSpec(GLOBAL, "source", count, 0, is_global=True)
    members = {name: _member(rng, name, port, tasks) for name, port in ports.items() if rng.random() < 0.95}
    share = rng.choice((0.1, 0.1, 0.8))
    suspects = {name: rng.choice(SUSPICIONS) for name in names if rng.random() < share}
    rack = rng.choice(("", *RACKS))
    return compile_table(Assignment(rng.randint(1, 9), stores=stores, tasks=tasks), members, rack=rack), suspects


def _member(rng: random.Random, name: str, port: int, tasks: dict[TaskId, TaskAssignment]) -> Member:
    held = [task for task, holders in tasks.items() if name in holders.replicas and rng.random() < 0.95]
    state = TaskState.RUNNING if rng.random() < 0.9 else TaskState.RESTORING
    report = ReplicaReport(Role.STANDBY, state, {store: StorePosition(5, 5 + rng.randrange(2)) for store in STORES})
    copies = {GLOBAL: GlobalReport(TaskState.RUNNING, {0: StorePosition(5, 5)})} if rng.random() < 0.5 else {}
    return Member(
        name,
        "first",
        "127.0.0.1",
        port,
        rack=rng.choice(RACKS),
        state=NodeState.RUNNING if rng.random() < 0.9 else NodeState.PENDING_SHUTDOWN,
        replicas=dict.fromkeys(held, report),
        global_replicas=copies,
    )


def made_request(rng: random.Random) -> bytes:
    """Return a serialized Get, mostly a plain one."""
    key = (
        types_pb2.Key(text=rng.choice(TEXTS))
        if rng.random() < 0.6
        else types_pb2.Key(raw=rng.randbytes(rng.randrange(20)))
    )
    request = query_service_pb2.GetRequest(store=rng.choice((*STORES, *STORES, GLOBAL, "unknown", "")), key=key)
    request.raw = rng.random() < 0.2
    request.json_text = rng.random() < 0.5
    if rng.random() < 0.3:
        request.freshness.CopyFrom(_made_bounds(rng))
    elif rng.random() < 0.2:
        request.freshness.moment.CopyFrom(_made_moment(rng))
    odd = rng.random()
    if odd < 0.03:
        request.ClearField("key")
    elif odd < 0.06:
        request.freshness.active_only = rng.random() < 0.5
    elif odd < 0.08:
        request.forwarding.epoch = 3
    data = request.SerializeToString()
    if odd > 0.97:
        data += data  # each field twice
    elif odd > 0.94:
        at = rng.randrange(len(data))
        data = data[:at] + rng.randbytes(1) + data[at + 1 :]
    elif odd > 0.92:
        data = data[: rng.randrange(len(data))]
    elif odd > 0.90:
        data += b"\x98\x06\x01"  # a field of a newer version
    return data


def _made_bounds(rng: random.Random) -> types_pb2.Freshness:
    """Return bounds, mostly such that any copy within them is as good as the others."""
    bounds = types_pb2.Freshness()
    most = rng.choice((0, 1, 1_000, 2**28 - 1, 2**28))
    if rng.random() < 0.6:
        bounds.max_lag = most
    if rng.random() < 0.6:
        bounds.max_staleness_ms = most
    if rng.random() < 0.2:
        bounds.max_processor_age_ms = most
    if rng.random() < 0.2:
        bounds.max_input_backlog = most
    if rng.random() < 0.2:
        bounds.at_least.positions.add(store=STORES[0], partition=0, position=7)
        if rng.random() < 0.7:
            bounds.ClearField("max_lag")
            bounds.ClearField("max_staleness_ms")
    if rng.random() < 0.15:
        bounds.active_only = True
    if rng.random() < 0.1:
        bounds.moment.CopyFrom(_made_moment(rng))
    return bounds


def _made_moment(rng: random.Random) -> types_pb2.MomentBound:
    """Return a bound on the batch."""
    moments = types_pb2.Moments(moments=[types_pb2.Moment(query_id="q", batch_id=rng.randrange(300))])
    return rng.choice(
        (
            types_pb2.MomentBound(newest=True),
            types_pb2.MomentBound(at_least=moments),
            types_pb2.MomentBound(exactly=moments, wait_ms=5),
            types_pb2.MomentBound(),
        )
    )


def made_page_request(rng: random.Random, stores: Sequence[str] = (*STORES, *STORES, GLOBAL, "unknown", "")) -> bytes:
    """Return a serialized Scan, mostly a plain one; its token is for `with_token`."""
    request = query_service_pb2.ScanRequest(
        store=rng.choice(stores),
        reverse=rng.random() < 0.4,
        raw=rng.random() < 0.3,
        json_text=rng.random() < 0.5,
        page_size=rng.choice((0, 0, 1, 3, 10, 40, 1_000, 5_000, 2**32 - 1)),
        from_key=_bound(rng, 0.2),
        to_key=_bound(rng, 0.2),
        prefix=_bound(rng, 0.1),
    )
    if rng.random() < 0.3:
        request.partition = rng.randrange(7)
    if rng.random() < 0.2:
        request.freshness.moment.CopyFrom(_made_moment(rng))
    odd = rng.random()
    if odd < 0.03:
        request.freshness.CopyFrom(
            rng.choice(
                (
                    types_pb2.Freshness(),
                    types_pb2.Freshness(max_lag=0),
                    types_pb2.Freshness(active_only=True),
                    types_pb2.Freshness(moment=_made_moment(rng)),
                )
            )
        )
    elif odd < 0.06:
        request.forwarding.CopyFrom(
            rng.choice((types_pb2.Forwarding(), types_pb2.Forwarding(hops=1), types_pb2.Forwarding(entry_keys=True)))
        )
    elif odd < 0.08:
        request.partitions.extend(rng.sample(range(6), rng.randrange(3)))
    elif odd < 0.09:
        request.as_of_ms = 5
    return request.SerializeToString()


def with_token(rng: random.Random, request: bytes) -> bytes:
    """Return a serialized Scan that goes on after some key: mostly by a token of its own."""
    asked = query_service_pb2.ScanRequest.FromString(request)
    other = query_service_pb2.ScanRequest(store=asked.store, reverse=not asked.reverse)
    of = other if rng.random() < 0.1 else asked
    moment = types_pb2.Moment(query_id="q", batch_id=rng.randrange(300)) if rng.random() < 0.1 else None
    token = next_page_token(of, rng.choice((b"", b"a", b"key-3", rng.randbytes(3))), moment)
    asked.page_token = token if rng.random() < 0.9 else rng.choice((token[:-2], f"{token}\n", "?", f"{token}AAAA"))
    return asked.SerializeToString()


def spoiled(rng: random.Random, request: bytes) -> bytes:
    """Return a request that is not as a serializer writes it."""
    odd = rng.random()
    if odd < 0.25:
        return request + request  # each field twice
    if odd < 0.5 and request:
        at = rng.randrange(len(request))
        return request[:at] + rng.randbytes(1) + request[at + 1 :]
    if odd < 0.75 and request:
        return request[: rng.randrange(len(request))]
    return request + b"\x98\x06\x01"  # a field of a newer version


def _bound(rng: random.Random, share: float) -> types_pb2.Key | None:
    if rng.random() >= share:
        return None
    if rng.random() < 0.5:
        return types_pb2.Key(text=rng.choice(("", "a", "key-2", "key-4", "7", "Zoë")))
    return types_pb2.Key(raw=rng.choice((b"", b"a", b"\xff", b"key-5", bytes(8))))
