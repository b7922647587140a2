"""The program answers from stores by the rule that `admitted` states: held together on made-up reads."""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from google.protobuf.message import DecodeError

from query_service.reads.moments import moment_in
from query_service.serving.admitted import Admitted, ReadRequest, admitted
from statehouse.contract.paging import next_page_token
from statehouse.control.v1 import serving_pb2
from statehouse.v1 import query_service_pb2
from tests.support.go_program import run_go_test
from tests.support.serving_cases import METHODS, NOW_US, Fleet, made_fleet, made_read

FLEETS, READS = 350, 40
"""Reads of each method, in each fleet."""
UNREADABLE = 255
LAST = b"last\0"
Seen: TypeAlias = Counter[tuple[type[ReadRequest], str]]


def test_the_program_admits_what_the_function_does(tmp_path: Path) -> None:
    rng, seen = random.Random(7), Seen()
    with (tmp_path / "cases").open("wb") as cases:
        for _ in range(FLEETS):
            fleet = made_fleet(rng)
            _write(cases, fleet.snapshot.SerializeToString())
            _write(cases, struct.pack(">I", len(fleet.held)))
            for number, each in fleet.held.items():
                _write(cases, struct.pack(">Qq", number, each.position))
                _write(cases, b"" if each.end is None else each.end.SerializeToString())
            facts = serving_pb2.ServingFacts(
                reports=fleet.reports.values(), moments=filter(None, (each.moments for each in fleet.held.values()))
            )
            _write(cases, facts.SerializeToString())
            _write(cases, struct.pack(">qI", NOW_US, READS * len(METHODS)))
            for method in METHODS * READS:
                read = made_read(rng, fleet, method)
                _write(cases, method.DESCRIPTOR.name.encode())
                _write(cases, read)
                _write(cases, _outcome(fleet, method, read, seen))
    run_go_test("admit", "TestAgainstReference", cases=tmp_path / "cases")
    obstacles = set(serving_pb2.ServingObstacle.keys()) - {"SERVING_OBSTACLE_NO_SNAPSHOT"}
    by_method = {method: {name for of, name in seen if of is method} - {"unreadable"} for method in METHODS}
    # A count shows no keys and no values.
    counted = obstacles - {"SERVING_OBSTACLE_KEY", "SERVING_OBSTACLE_VALUE"}
    assert by_method == {**dict.fromkeys(METHODS, obstacles), query_service_pb2.CountRequest: counted}, "each came up"
    answered = {method: seen[method, "SERVING_OBSTACLE_UNSPECIFIED"] for method in METHODS}
    assert min(answered.values()) > FLEETS * READS * 0.1, answered


def _outcome(
    fleet: Fleet, method: type[ReadRequest], read: bytes, seen: Counter[tuple[type[ReadRequest], str]]
) -> bytes:
    """Return what the function says of a read: an obstacle and whether that is all that the program may say.

    After that, of a read that is answered: the form, the key, the range and the size of a page, the token of the next
    one, and each replica's number and stamp.
    """
    try:
        request: Any = method.FromString(read)
    except DecodeError:
        seen[method, "unreadable"] += 1
        return struct.pack(">BB", UNREADABLE, 1)
    found = admitted(fleet.snapshot, fleet.held.__getitem__, fleet.reports, request, NOW_US)
    # The program may say that what no serializer writes isn't plain, which costs time and nothing else.
    request.DiscardUnknownFields()
    is_plain = request.SerializeToString(deterministic=True) == read
    if not isinstance(found, Admitted):
        seen[method, serving_pb2.ServingObstacle.Name(found)] += 1
        return struct.pack(">BB", found, is_plain)
    seen[method, "SERVING_OBSTACLE_UNSPECIFIED"] += 1
    said = struct.pack(">BBB", 0, is_plain, found.form) + _sized(found.key or b"")
    if found.left is not None:
        stamp = found.replicas[0][1]
        said += (
            _sized(found.left.start) + struct.pack(">B", found.left.stop is not None) + _sized(found.left.stop or b"")
        )
        said += b"".join(_sized(bound) for gap in found.left.gaps for bound in gap)
        said += struct.pack(">I", found.entries) + _sized(next_page_token(request, LAST, moment_in(stamp)).encode())
    for number, stamp in found.replicas:
        said += struct.pack(">Q", number) + _sized(stamp.SerializeToString())
    return said


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _write(cases: BinaryIO, data: bytes) -> None:
    cases.write(_sized(data))
