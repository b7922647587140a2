"""What a lookup costs in our own code, line by line: `python -m bench.lines`.

Calls the parts of a Get in one thread, with a running task and 100,000 keys in RocksDB, as in a node. It prints the
best of several repetitions, on which a disturbed machine has the least effect. `make bench` measures what a call costs
before and after these parts.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from bench.data import key_of, value_of
from query_service.reads.admission import Admission
from query_service.reads.fleet_view import view_of
from query_service.reads.get_responses import answer, stamped
from query_service.reads.lookups import LookupHandler
from query_service.reads.serde_fetches import SerdeFetches
from query_service.replicas.replica import StoreReplica, TaskReplica
from query_service.service import QueryServicer
from query_service.states.checkpoint import Checkpoint
from query_service.states.task_events import NodeTask
from query_service.stores.base import ChangelogRecord
from query_service.stores.key_value import KeyValueStore
from query_service.stores.rocksdb_engine import RocksDBEngine
from query_service.telemetry.metrics import NodeMetrics, ReadKind
from statehouse.contract.assignment import Assignment, TaskAssignment
from statehouse.contract.membership import TaskState
from statehouse.contract.partitioning import partition_for
from statehouse.contract.processor_reports import ProcessorReport
from statehouse.contract.topology import Role, StoreSpec, TaskId
from statehouse.kafka.partitioner import partitioner
from statehouse.link.link import LinkContext
from statehouse.v1 import query_service_pb2, types_pb2

_KEYS: Final = 100_000
_PARTITIONS: Final = 8
_ASKED: Final = 2_000
_REPETITIONS: Final = 25
_STORE: Final = "latest"
_NODE: Final = "node-1"
_WRITTEN_MS: Final = 1_700_000_000_000


def main() -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as directory:
        parts = _measure(_admission(Path(directory)))
    whole = parts.pop("all of it")
    text = ["| part of a Get | µs |", "|---|---|", *(f"| {what} | {us:.2f} |" for what, us in parts.items())]
    text += [f"| the rest | {whole - sum(parts.values()):.2f} |", f"| **all of it** | **{whole:.2f}** |"]
    sys.stdout.write("\n".join(text) + "\n")


def _admission(directory: Path) -> Admission:
    """Return the admission of a node that is active for all partitions of a store and has caught up."""
    spec = StoreSpec(_STORE, "changelog", _PARTITIONS, 0, value_serde="string")
    tasks = {TaskId(0, partition): TaskAssignment(_NODE) for partition in range(_PARTITIONS)}
    metrics, records = NodeMetrics(), _records()
    replicas = {}
    for task in tasks:
        engine = RocksDBEngine(directory / str(task))
        store = KeyValueStore(engine)
        position = len(records[task.partition])
        store.apply(records[task.partition], Checkpoint("changelog", "id", position, 1))
        held = NodeTask(task, Role.ACTIVE, ((spec, task.partition),), TaskState.RUNNING)
        replica = TaskReplica(held, cast("Any", None))
        of_store = StoreReplica(
            spec, task.partition, store, Checkpoint("changelog", "id", position, 1), metrics.of(_STORE, Role.ACTIVE)
        )
        of_store.note_end(position, time.monotonic(), int(time.time() * 1000))
        replica.stores[of_store.folder] = of_store
        replicas[task] = replica
    admission = Admission(
        types_pb2.Host(instance_id=_NODE, host="127.0.0.1", port=9),
        cast("Any", replicas),
        lambda: True,
        {_STORE: ProcessorReport(time.monotonic(), 0)},
        partitioner(),
    )
    assignment = Assignment(1, stores=MappingProxyType({_STORE: spec}), tasks=MappingProxyType(tasks))
    admission.view = view_of(assignment, {})
    return admission


def _records() -> list[list[ChangelogRecord]]:
    records: list[list[ChangelogRecord]] = [[] for _ in range(_PARTITIONS)]
    for number in range(_KEYS):
        key = key_of(number).encode()
        records[partition_for(key, _PARTITIONS)].append(ChangelogRecord(key, value_of(number).encode(), _WRITTEN_MS))
    return records


def _measure(admission: Admission) -> dict[str, float]:
    """Return the microseconds that each part takes, in the order of a lookup."""
    metrics = NodeMetrics()
    lookups = LookupHandler(
        admission, cast("Any", None), metrics, max_batch_entries=1_000, max_message_bytes=4 * 1024 * 1024
    )
    nothing = cast("Any", None)
    servicer = QueryServicer(lookups, nothing, nothing, nothing, SerdeFetches(timeout_s=1), metrics)
    # Requests as a router sends them.
    forwarding = types_pb2.Forwarding(epoch=1, hops=1)
    numbers = random.Random(1).sample(range(_KEYS), _ASKED)  # noqa: S311 - which keys is no secret
    requests = [
        query_service_pb2.GetRequest(store=_STORE, key=types_pb2.Key(text=key_of(number)), forwarding=forwarding)
        for number in numbers
    ]
    wire = [request.SerializeToString() for request in requests]
    admitted = [admission.admit_key(request) for request in requests]
    found = [(value_of(number).encode(), _WRITTEN_MS) for number in numbers]
    started = time.perf_counter()

    get, caller = servicer.proxied["Get"], LinkContext(None)

    def counted(served: StoreReplica) -> None:
        served.metrics.reads[ReadKind.GET].add(started, 100)
        metrics.call("Get", "OK")

    stores = [cast("Any", replica.store) for _, _, replica, _ in admitted]
    return _best_us(
        {
            "parse the request": (query_service_pb2.GetRequest.FromString, wire),
            "admit it: store, key, partition, role, freshness; its stamp": (admission.admit_key, requests),
            "read RocksDB": (lambda at: stores[at].get_with_timestamp(admitted[at][1]), range(_ASKED)),
            "make and write the answer": (
                lambda at: answer(admitted[at][0], found[at], raw=False, stamp=stamped(admitted[at][3])),
                range(_ASKED),
            ),
            "count": (counted, [replica for _, _, replica, _ in admitted]),
            "all of it": (lambda data: get(data, caller), wire),
        }
    )


def _best_us(parts: Mapping[str, tuple[Callable[[Any], object], Sequence[Any]]]) -> dict[str, float]:
    """Return the microseconds that a call of each part takes, in its best repetition; the parts take turns."""
    best = dict.fromkeys(parts, math.inf)
    for _ in range(_REPETITIONS):
        for what, (part, arguments) in parts.items():
            begin = time.perf_counter()
            for argument in arguments:
                part(argument)
            best[what] = min(best[what], 1e6 * (time.perf_counter() - begin) / len(arguments))
    return best


if __name__ == "__main__":
    main()
