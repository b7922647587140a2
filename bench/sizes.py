"""The sizes of a run: for each, its plans in order.

`smoke` shows that both sides can be measured; `rehearsal` runs every workload, as small as possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from bench.failure import BenchFailure
from bench.shape import Load, Plan, Shape, Side

_SERVING: Final = ("warm-up", "gets", "batches", "scans", "python-client", "memory")
_KILLS: Final = ("failover", "rolling-restart")
_EXPERT: Final = ("start", "warm-up", "gets", "batches")
_GROWTH: Final = ("start", "warm-up", "gets", "memory")

# With these options Java starts sooner but never gets as fast.
_SMALL: Final = Shape(
    keys=2_000,
    partitions=2,
    commit_interval_ms=200,
    java=("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
)
_SHORT: Final = Load(seconds=0.3, warm_up_s=0.4, concurrencies=(4,), batches=(10,), span=20, rate=100, freshness_s=0.4)


def _both(*names: str) -> dict[Side, tuple[str, ...]]:
    return dict.fromkeys((Side.OURS, Side.PEER), names)


def _serving(shape: Shape, load: Load, rounds: int, faults: tuple[str, ...] = ()) -> Plan:
    return Plan(
        "Serving",
        shape,
        load,
        rounds,
        work={
            Side.OURS: ("start", *_SERVING, "hot-key"),
            Side.PEER: ("start", *_SERVING),
            Side.OURS_GRPCIO: _EXPERT,
            Side.PEER_DIRECT: _EXPERT,
            Side.FLOOR: ("start", "gets-straight"),
        },
        last_round=_both("restart", *faults),
    )


def _restores(shape: Shape, rounds: int) -> Plan:
    return Plan("Restores", shape, Load(seconds=1.0, warm_up_s=0.0), rounds, work=_both("restore"))


def _processing(keys: int, freshness_s: float) -> Plan:
    return Plan(
        "Processing",
        Shape(keys, partitions=4),
        Load(seconds=1.0, warm_up_s=30.0, freshness_s=freshness_s),
        rounds=1,
        work={
            Side.OURS: ("build", "freshness"),
            Side.OURS_FOLLOWING: ("build", "freshness"),
            Side.PEER: ("build", "freshness"),
            Side.PEER_UNCACHED: ("build", "freshness"),
        },
        processor=True,
    )


def _redis(shape: Shape, load: Load, rounds: int, fed_load: Load) -> tuple[Plan, Plan]:
    """Return the plans of lookups, without a Spark that disturbs them, and of what Spark writes."""
    fed = ("build", "freshness", "store-kill", "driver-kill")
    return (
        Plan(
            "Redis",
            shape,
            load,
            rounds,
            work={
                Side.OURS: ("start", "warm-up", "gets", "batches", "memory"),
                Side.REDIS: ("start", "gets", "batches", "memory"),
            },
        ),
        Plan(
            "Redis, fed by Spark",
            replace(shape, partitions=min(4, shape.partitions)),
            fed_load,
            rounds=1,
            work={Side.OURS: fed, Side.REDIS: fed, Side.REDIS_SNAPSHOTS: ("build", "store-kill")},
            processor=True,
        ),
    )


def _growth(name: str, shape: Shape, sides: tuple[Side, ...] = (Side.OURS, Side.PEER)) -> Plan:
    load = Load(seconds=5.0, warm_up_s=10.0, concurrencies=(64,))
    return Plan(f"Growth, {name}", shape, load, rounds=1, work=dict.fromkeys(sides, _GROWTH))


_SMOKE: Final = Plan(
    "Smoke",
    replace(_SMALL, nodes=1),
    _SHORT,
    rounds=1,
    work=_both("start", "warm-up", "gets", "batches", "scans", "memory"),
)
_REHEARSAL: Final = (
    _restores(_SMALL, rounds=1),
    _serving(_SMALL, _SHORT, rounds=2, faults=_KILLS),
    Plan("Processing", _SMALL, _SHORT, rounds=2, work=_both("build", "freshness"), processor=True),
    *_redis(_SMALL, _SHORT, 1, _SHORT),
)
_FAULTS: Final = Plan(
    "Faults",
    Shape(100_000, nodes=3),
    Load(seconds=5.0, warm_up_s=20.0),
    rounds=1,
    work=_both("start", "warm-up", *_KILLS),
)
_QUICK: Final = (
    _restores(Shape(200_000), rounds=1),
    _serving(Shape(200_000), Load(seconds=2.0, warm_up_s=6.0, concurrencies=(1, 64), batches=(100,)), 1, _KILLS),
    _processing(200_000, freshness_s=5.0),
    *_redis(
        Shape(200_000),
        Load(seconds=2.0, warm_up_s=6.0, concurrencies=(1, 64), batches=(100,)),
        1,
        Load(seconds=1.0, warm_up_s=10.0, freshness_s=5.0),
    ),
)
_FULL: Final = (
    _restores(Shape(1_000_000), rounds=5),
    _serving(Shape(1_000_000), Load(seconds=3.0, warm_up_s=12.0), rounds=3),
    _FAULTS,
    _processing(1_000_000, freshness_s=20.0),
    # What starts of Java take is little of this.
    Plan(
        "Building",
        Shape(5_000_000, partitions=4),
        Load(seconds=1.0, warm_up_s=10.0),
        rounds=1,
        work=_both("build"),
        processor=True,
    ),
    *_redis(
        Shape(1_000_000),
        Load(seconds=3.0, warm_up_s=12.0, batches=(100,)),
        3,
        Load(seconds=1.0, warm_up_s=30.0, freshness_s=20.0),
    ),
    # The peer builds its store only as fast as it processes: that would take a quarter of an hour.
    _growth("10000000 keys", Shape(10_000_000), sides=(Side.OURS,)),
    *(_growth(f"{keys} keys", Shape(keys)) for keys in (1_000, 100_000)),
    *(_growth(f"{count} partitions", Shape(100_000, count)) for count in (1, 64)),
    *(_growth(f"{count} nodes", Shape(100_000, nodes=count)) for count in (1, 8)),
)


def named(plans: Sequence[Plan], name: str | None) -> list[Plan]:
    """Return the plans with this name, and those whose names begin with it and a comma; without a name all."""
    return [plan for plan in plans if name in {None, plan.name, plan.name.split(",")[0]}]


def compared(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans with a processor and the peer; an earlier commit does what ours does."""
    return [
        replace(plan, work={Side.OURS_BEFORE: plan.work[Side.OURS], **plan.work})
        for plan in plans
        if plan.processor and Side.PEER in plan.work
    ]


def of_sides(plans: Sequence[Plan], sides: Sequence[Side]) -> list[Plan]:
    """Return the plans that have one of these sides, with them alone.

    Raises:
        BenchFailure: no plan has one of them.

    """
    left = [replace(plan, work={side: work for side, work in plan.work.items() if side in sides}) for plan in plans]
    if missing := set(sides) - {side for plan in left for side in plan.work}:
        raise BenchFailure(f"no plan measures {', '.join(sorted(missing))}")
    return [plan for plan in left if plan.work]


def secured(plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans that have every kind of lookup, with our fleet alone: plain, and with TLS and rules."""
    both: dict[Side, tuple[str, ...]] = dict.fromkeys((Side.OURS, Side.OURS_TLS), ("gets", "batches"))
    return [
        replace(plan, work=both, last_round={}, rounds=8, together=True)
        for plan in plans
        if "scans" in plan.work[Side.OURS]
    ]


SIZES: Final = {"smoke": (_SMOKE,), "rehearsal": _REHEARSAL, "quick": _QUICK, "full": _FULL}
