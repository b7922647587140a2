"""Every engine answers what is recorded, and what is drawn anew as the first one does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from query_service.reads.store_queries import QUERIES
from statehouse.errors import Reason
from statehouse.local.kafka import EmbeddedKafka
from tests.conformance.calls import Calls
from tests.conformance.dataplane import Changelogs, changelogs, data_plane
from tests.conformance.outcomes import outcome
from tests.conformance.record import RECORDED, answered
from tests.conformance.reference import REFERENCES
from tests.conformance.scenes import SCENES
from tests.conformance.subject import Node, request_type

ALONE = {
    "formats": 0.4,
    "odd-keys": 0.5,
    "documents": 0.25,
    "windows": 0.5,
    "sessions": 0.5,
    "versions": 0.5,
    "states": 0.2,
}
"""The least share of each kind of reads, as far as a scene's stores have it, that the program answers on its own. The
others are more than plain reads, or are refused, or take more than a message. Else Python could answer all, and nobody
would notice."""
OF_PYTHON = {"versions": "Scan"}
"""What only Python answers."""


@pytest.fixture(scope="module")
def written(kafka: EmbeddedKafka) -> Iterator[Changelogs]:
    with changelogs(kafka.bootstrap, SCENES.values()) as written:
        yield written


async def answers_what_is_recorded(node: Node, name: str) -> None:
    for number, line in enumerate((RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(), 1):
        recorded = json.loads(line)
        method = recorded["method"]
        request = json_format.ParseDict(recorded["request"], request_type(method)())
        found, _ = await outcome(node, method, request)
        expected = {name: value for name, value in recorded.items() if name in ("answer", "refused")}
        assert found == expected, f"line {number}: {method} {recorded['request']}"


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("subject", REFERENCES)
async def test_an_engine_answers_what_is_recorded(subject: str, name: str, tmp_path: Path) -> None:
    async with REFERENCES[subject](SCENES[name], tmp_path) as node:
        await answers_what_is_recorded(node, name)


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("name", SCENES)
async def test_the_data_plane_answers_what_is_recorded(
    written: Changelogs, name: str, in_memory: bool, tmp_path: Path
) -> None:
    async with data_plane(written, SCENES[name], tmp_path, in_memory=in_memory) as node:
        await answers_what_is_recorded(node, name)
    least = ALONE.get(name, 0.0)
    shares = {method: node.alone[method] / count for method, count in node.asked.items() if count}
    own = {method for spec in SCENES[name].stores for method in QUERIES[spec.kind]} - {OF_PYTHON.get(name)}
    assert all(share >= least for method, share in shares.items() if method in own), shares
    assert SCENES[name].is_confirmed or not any(shares.values()), shares


async def answer_alike(written: Changelogs, name: str, directory: Path, seeds: range) -> None:
    scene = SCENES[name]
    first: dict[int, list[dict[str, Any]]] = {}
    in_go = {
        f"data-plane-{kept}": partial(data_plane, written, in_memory=kept == "memory") for kept in ("disk", "memory")
    }
    for subject, opened in {**REFERENCES, **in_go}.items():
        async with opened(scene, directory / subject) as node:
            for seed in seeds:
                said = await answered(node, iter(Calls(scene, seed)), 100)
                for line, expected in zip(said, first.setdefault(seed, said), strict=True):
                    assert line == expected, f"seed {seed}: {subject} answers {line['method']} {line['request']}"


@pytest.mark.parametrize("name", SCENES)
async def test_engines_answer_alike(written: Changelogs, name: str, tmp_path: Path) -> None:
    await answer_alike(written, name, tmp_path, range(3))


@pytest.mark.long
@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("seed", range(10, 100, 10))
async def test_engines_answer_many_calls_alike(written: Changelogs, name: str, seed: int, tmp_path: Path) -> None:
    await answer_alike(written, name, tmp_path, range(seed, seed + 10))


def test_what_is_recorded_has_answers_and_refusals_of_every_kind() -> None:
    """Else an engine could pass without having been asked."""
    methods: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for file in sorted(RECORDED.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            recorded = json.loads(line)
            if "refused" in recorded:
                reasons[recorded["refused"]["reason"]] += 1
            else:
                methods[recorded["method"]] += 1
    assert min(methods[name] for name in ("Get", "BatchGet", "Scan", "Count")) > 50, methods
    keyed = ("FetchWindows", "FetchSessions", "GetAsOf", "GetHistory", "ScanWindows", "ScanSessions")
    assert min(methods[name] for name in keyed) > 5, methods
    of_routers = {
        Reason.NO_REPLICA_AVAILABLE,
        Reason.ROUTING_NOT_READY,
        Reason.ATTEMPT_TIMED_OUT,
        Reason.UNREACHABLE,
        Reason.UNKNOWN_ADDRESS,
        Reason.INPUT_NOT_PROCESSED,
        Reason.UNAUTHENTICATED,
        Reason.PERMISSION_DENIED,
    }
    of_versions = {Reason.VERSION_CHANGED, Reason.UNKNOWN_VERSION}  # the recorded node has but one
    of_load = {
        Reason.NODE_SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.DEADLINE_EXCEEDED,
        Reason.INTERNAL,
        Reason.SCAN_TOO_LONG,
        Reason.WOULD_WAIT,
    }
    # tests/integration/query_service/test_moments.py
    elsewhere = {
        Reason.MOMENTS_UNAVAILABLE,
        Reason.MOMENT_GONE,
        Reason.MOMENT_NOT_REACHED,
        Reason.VALUE_TOO_OLD,
    }
    not_recorded = of_routers | of_versions | of_load | elsewhere
    assert {each.name for each in Reason} - reasons.keys() == {each.name for each in not_recorded}
