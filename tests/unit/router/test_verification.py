"""A router that compares replicas in the background: what it counts and logs, and that it can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from router.telemetry.metrics import RouterMetrics
from router.verification import BackgroundVerifier
from router.workers import settings_of_worker
from statehouse.cli import verification
from statehouse.errors import LookupFailure, Reason
from statehouse.settings import RouterSettings
from statehouse.v1 import fleet_service_pb2
from tests.support.polling import poll_until
from tests.support.recorded_fleet import RecordedFleet, recorded_fleet


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedFleet]:
    monkeypatch.setattr(verification, "_AGAIN_S", 0.01)
    with recorded_fleet() as fleet:
        yield fleet


def verifier(fleet: RecordedFleet, metrics: RouterMetrics) -> BackgroundVerifier:
    """Return one for the first partition of the store whose nodes tests fill."""

    def known() -> fleet_service_pb2.GetFleetResponse:
        found = fleet_service_pb2.GetFleetResponse()
        found.CopyFrom(fleet.fleet)
        found.stores[0].partition_count = 1
        for store in found.stores[1:]:
            store.no_moments = "it is another"
        return found

    def partitions(store: str) -> fleet_service_pb2.ListPartitionsResponse:
        found = fleet_service_pb2.ListPartitionsResponse(partitions=fleet.router.partitions[store])
        found.partitions[0].replicas[1].state = "running"
        return found

    return BackgroundVerifier(0.01, 0, known, partitions, metrics, None)


def sample(metrics: RouterMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"statehouse_router_{name}", {"store": "boards", **labels})


def test_what_differs_is_counted_and_logged_until_it_is_mended(
    fleet: RecordedFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.verification._PAUSE_MIN_S", 0.01)
    metrics = RouterMetrics()
    node = fleet.nodes["node-b"]
    node.stored.pop(b"player-1")

    async def play() -> None:
        work = asyncio.create_task(verifier(fleet, metrics).run())

        async def until(wrong: float) -> None:
            await asyncio.to_thread(
                poll_until, lambda: sample(metrics, "wrong_replicas", node="node-b") == wrong, 20, f"{wrong} replicas"
            )

        async def until_counted(outcome: str) -> None:
            counted = lambda: sample(metrics, "verified_partitions_total", outcome=outcome)  # noqa: E731 - short
            await asyncio.to_thread(poll_until, counted, 20, f"a comparison that is {outcome}")

        await until(1.0)
        node.stored = dict(node.logged)
        await until(0.0)
        await until_counted("equal")
        work.cancel()
        await asyncio.wait([work])

    with capture_logs() as logs:
        asyncio.run(play())
    told = [each for each in logs if each["log_level"] == "error"]
    assert told[0]["nodes"] == ["node-b"]
    assert (told[0]["store"], told[0]["partition"], told[0]["entries"]) == ("boards", 0, 1)
    assert (sample(metrics, "verified_partitions_total", outcome="differs") or 0) >= 1
    assert "player-1" not in str(logs)


def test_what_can_not_be_compared_is_no_difference_and_ends_with_the_router(fleet: RecordedFleet) -> None:
    metrics = RouterMetrics()
    fleet.nodes["node-b"].sum_failures = [LookupFailure(Reason.WRONG_STORE_KIND, "no")]
    again = [LookupFailure(Reason.PARTITION_RESTORING, "not yet")] * 10_000

    async def play() -> None:
        work = asyncio.create_task(verifier(fleet, metrics).run())
        counted = lambda: sample(metrics, "verified_partitions_total", outcome="unchecked") == 1.0  # noqa: E731 - short
        await asyncio.to_thread(poll_until, counted, 20, "a comparison that can't be made")
        fleet.nodes["node-b"].sum_failures = again
        work.cancel()
        await asyncio.wait([work])

    asyncio.run(asyncio.wait_for(play(), 30))
    assert sample(metrics, "wrong_replicas", node="node-b") is None


def test_one_of_several_workers_compares() -> None:
    settings = RouterSettings(application_id="a", verify_interval_ms=5, router_port=0)
    assert [settings_of_worker(settings, each, 1).verify_interval_ms for each in range(3)] == [5, 0, 0]
