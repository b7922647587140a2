"""The program answers from stores by the rule that `admitted` states: held together on made-up lookups."""

from __future__ import annotations

import random
import struct
import subprocess
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError

from query_service.serving.admitted import Admitted, admitted
from statehouse.control.v1 import serving_pb2
from statehouse.v1 import query_service_pb2
from tests.support.serving_cases import NOW_US, Fleet, made_fleet, made_lookup

DATAPLANE = Path(__file__).parents[3] / "dataplane"
FLEETS, LOOKUPS = 500, 100
UNREADABLE = 255


def test_the_program_admits_what_the_function_does(tmp_path: Path) -> None:
    rng, seen = random.Random(7), Counter[str]()
    with (tmp_path / "cases").open("wb") as cases:
        for _ in range(FLEETS):
            fleet = made_fleet(rng)
            _write(cases, fleet.snapshot.SerializeToString())
            _write(cases, struct.pack(">I", len(fleet.held)))
            for number, each in fleet.held.items():
                _write(cases, struct.pack(">Qq", number, each.position))
                _write(cases, b"" if each.end is None else each.end.SerializeToString())
            facts = serving_pb2.ServingFacts(reports=fleet.reports.values())
            _write(cases, facts.SerializeToString())
            _write(cases, struct.pack(">qI", NOW_US, LOOKUPS))
            for _ in range(LOOKUPS):
                lookup = made_lookup(rng, fleet)
                _write(cases, lookup)
                _write(cases, _outcome(fleet, lookup, seen))
    ran = subprocess.run(
        ["go", "test", "-count=1", "-run", "^TestAgainstReference$", "./admit", f"-cases={tmp_path / 'cases'}"],
        cwd=DATAPLANE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    obstacles = set(serving_pb2.ServingObstacle.keys()) - {"SERVING_OBSTACLE_NO_SNAPSHOT"}
    assert seen.keys() - {"unreadable"} == obstacles, "each came up"
    assert seen["SERVING_OBSTACLE_UNSPECIFIED"] > FLEETS * LOOKUPS * 0.2


def _outcome(fleet: Fleet, lookup: bytes, seen: Counter[str]) -> bytes:
    """Return what the function says of a lookup: an obstacle and whether that is all that the program may say.

    After that, of a lookup that is answered: the replica's number, the form, the key and the stamp.
    """
    try:
        request = query_service_pb2.GetRequest.FromString(lookup)
    except DecodeError:
        seen["unreadable"] += 1
        return struct.pack(">BB", UNREADABLE, 1)
    found = admitted(fleet.snapshot, fleet.held.__getitem__, fleet.reports, request, NOW_US)
    # The program may say that what no serializer writes isn't plain, which costs time and nothing else.
    request.DiscardUnknownFields()  # type: ignore[no-untyped-call]
    is_plain = request.SerializeToString(deterministic=True) == lookup
    if not isinstance(found, Admitted):
        seen[serving_pb2.ServingObstacle.Name(found)] += 1
        return struct.pack(">BB", found, is_plain)
    seen["SERVING_OBSTACLE_UNSPECIFIED"] += 1
    key = struct.pack(">I", len(found.key)) + found.key
    return struct.pack(">BBQB", 0, is_plain, found.store, found.form) + key + found.stamp.SerializeToString()


def _write(cases: BinaryIO, data: bytes) -> None:
    cases.write(struct.pack(">I", len(data)) + data)
