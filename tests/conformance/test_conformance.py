"""Every engine answers what is recorded, and what is drawn anew as the first one does."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from google.protobuf import json_format

from statehouse.errors import Reason
from tests.conformance.calls import Calls
from tests.conformance.outcomes import outcome
from tests.conformance.record import RECORDED, answered
from tests.conformance.reference import REFERENCES
from tests.conformance.scenes import SCENES
from tests.conformance.subject import request_type


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("subject", REFERENCES)
async def test_an_engine_answers_what_is_recorded(subject: str, name: str, tmp_path: Path) -> None:
    lines = (RECORDED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    async with REFERENCES[subject](SCENES[name], tmp_path) as node:
        for number, line in enumerate(lines, 1):
            recorded = json.loads(line)
            method = recorded["method"]
            request = json_format.ParseDict(recorded["request"], request_type(method)())
            found, _ = await outcome(node, method, request)
            expected = {name: value for name, value in recorded.items() if name in ("answer", "refused")}
            assert found == expected, f"line {number}: {method} {recorded['request']}"


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("seed", range(3))
async def test_engines_answer_alike(name: str, seed: int, tmp_path: Path) -> None:
    said = []
    for subject, opened in REFERENCES.items():
        async with opened(SCENES[name], tmp_path / subject) as node:
            said.append(await answered(node, iter(Calls(SCENES[name], seed)), 100))
    assert all(each == said[0] for each in said)


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
    of_load = {
        Reason.NODE_SHUTTING_DOWN,
        Reason.OVERLOADED,
        Reason.DEADLINE_EXCEEDED,
        Reason.INTERNAL,
        Reason.SCAN_TOO_LONG,
        Reason.WOULD_WAIT,
    }
    assert {each.name for each in Reason} - reasons.keys() == {each.name for each in of_routers | of_load}
