"""A custom kind on the layout of windows, from a static topology to a router: the example's histograms."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from response_times.histograms import BUCKETS

from query_service.stores.custom import GROUP
from statehouse.client import Client
from statehouse.contract.partitioning import partition_for
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import WindowKey
from statehouse.local.kafka import EmbeddedKafka
from tests.support.fleet import ServerProcess, Servers
from tests.support.kafka import create_topic, produce_placed
from tests.support.plugins import install
from tests.support.polling import poll_until

MINUTE_MS = 60_000
EXAMPLE = Path(__file__).parents[3] / "examples" / "response_times"


def counts(**buckets: int) -> bytes:
    """Return a histogram's JSON: `b4=2` is two durations in bucket 4."""
    return json.dumps([buckets.get(f"b{bucket}", 0) for bucket in range(BUCKETS)]).encode()


@pytest.mark.feature("custom-kinds-layouts")
def test_histograms_of_windows_answer_quantiles_and_are_windows(
    kafka: EmbeddedKafka, unique_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Under a name of its own: whether the example itself is installed doesn't matter.
    install(tmp_path / "packages", "timings", GROUP, {"timings": "response_times.store:HistogramStore"}, "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "packages"), str(EXAMPLE)]))
    app = unique_name("app")
    topic = f"{app}-times-changelog"
    create_topic(kafka.bootstrap, topic, 2, {"cleanup.policy": "compact,delete"})
    records = {
        ("/home", 1): counts(b4=90),
        ("/home", 2): counts(b4=9, b10=1),
        ("/cart", 2): counts(b2=1),
    }
    produce_placed(
        kafka.bootstrap,
        topic,
        (
            (partition_for(path.encode(), 2), WindowKey(path.encode(), minute * MINUTE_MS).to_bytes(), value, 0)
            for (path, minute), value in records.items()
        ),
    )
    file = tmp_path / "topology.toml"
    file.write_text(
        f"""
        application_id = "{app}"
        [[stores]]
        name = "times"
        kind = "timings"
        layout = "window"
        retention_ms = 3600000
        window_size_ms = {MINUTE_MS}
        """
    )
    options = {"static": file, "bootstrap": kafka.bootstrap, "heartbeat-interval-ms": 200, "session-timeout-ms": 2000}
    controller = ServerProcess("static", "processor.cli", options, 0, tmp_path)
    with Servers(kafka.bootstrap, app, tmp_path, heartbeat_interval_ms=200, session_timeout_ms=2000) as servers:
        servers.processes.append(controller.start())
        node, router = servers.node("n1"), servers.router()
        with Client(router.target) as client:

            def quantile(path: str, **arguments: float) -> object:
                return client.query_store("times", path, "quantile", arguments).result

            def is_restored() -> bool:
                try:
                    return quantile("/home", q=1) is not None and quantile("/cart", q=1) is not None
                except LookupFailure:
                    return False

            poll_until(is_restored, 60, "both paths")
            assert quantile("/home", q=0.99) == {"count": 100, "windows": 2, "from_ms": 8, "below_ms": 16}
            assert quantile("/home", q=1) == {"count": 100, "windows": 2, "from_ms": 512, "below_ms": 1024}
            assert quantile("/home", q=1, to_ms=MINUTE_MS) == {"count": 90, "windows": 1, "from_ms": 8, "below_ms": 16}
            assert quantile("/none", q=1) is None

            # What every window store has.
            found = [window.start_ms for window in client.fetch_windows("times", "/home")]
            assert found == [MINUTE_MS, 2 * MINUTE_MS]
            every = [
                (window.key, window.start_ms, window.end_ms) for window in client.scan_windows("times", page_size=1)
            ]
            assert every == [
                ("/cart", 2 * MINUTE_MS, 3 * MINUTE_MS),
                ("/home", MINUTE_MS, 2 * MINUTE_MS),
                ("/home", 2 * MINUTE_MS, 3 * MINUTE_MS),
            ]
            assert client.count("times", exact=True).count == 3
            with client.watch("times", "/cart") as watch:
                update = next(update for update in watch if update.changes)
                assert [(change.key, change.start_ms) for change in update.changes] == [("/cart", 2 * MINUTE_MS)]
            with pytest.raises(LookupFailure, match="FetchWindows, ScanWindows, Count, QueryStore") as refused:
                client.get("times", "/home")
            assert refused.value.reason is Reason.WRONG_STORE_KIND

            # A window two hours later expires the others; a restart finds the store as it was.
            late = WindowKey(b"/home", 121 * MINUTE_MS).to_bytes()
            produce_placed(kafka.bootstrap, topic, iter([(partition_for(b"/home", 2), late, counts(b0=1), 0)]))
            only = {"count": 1, "windows": 1, "from_ms": 0, "below_ms": 1}
            poll_until(lambda: quantile("/home", q=1) == only, 20, "the later window alone")
            node.stop()
            node.start()
            poll_until(is_there(quantile, only), 30, "the same after a restart")


def is_there(quantile: Callable[..., object], expected: object) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            return quantile("/home", q=1) == expected
        except LookupFailure:
            return False

    return asked
