"""A real Prometheus watches a real fleet: each query of the dashboards returns data, and alerts fire and resolve."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from statehouse.client import Client
from statehouse.errors import LookupFailure
from statehouse.local import samples
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from tests.support.fleet import ServerProcess, Servers
from tests.support.monitoring import alerts, dashboard_queries, rules
from tests.support.polling import poll_until
from tests.support.prometheus import Prometheus

# A start of Spark, queries over minutes, and alerts that wait for a minute or two.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1_200)]

APPLICATION, STORE = "page-views", "views-per-page"
PAGES = [f"page-{number}" for number in range(50)]


@dataclass(frozen=True, slots=True)
class Watched:
    """A fleet, and the Prometheus that watches it."""

    nodes: dict[str, ServerProcess]
    prometheus: Prometheus

    def firing(self) -> set[str]:
        return {labels["alertname"] for labels in self.prometheus.alerts()}


@contextlib.contextmanager
def _in_use(bootstrap: str, router: ServerProcess) -> Iterator[None]:
    """Views come in, and counts are read, until the context ends. A lookup that fails is the alerts' to tell."""
    stop = threading.Event()

    def use() -> None:
        with Client(router.target, direct=False) as client:
            while not stop.wait(0.1):
                samples.send(bootstrap, [samples.Sample("views", None, page) for page in PAGES])
                for page in PAGES:
                    with contextlib.suppress(LookupFailure):
                        client.get(STORE, page)
                with contextlib.suppress(LookupFailure):
                    client.get("no-such-store", "x")  # the dashboards show failed lookups, too

    user = threading.Thread(target=use, name="user")
    user.start()
    try:
        yield
    finally:
        stop.set()
        user.join()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    with EmbeddedKafka() as kafka, Servers(kafka.bootstrap, APPLICATION, folder) as servers:
        samples.create_topics(kafka.bootstrap, {"views": {}}, 4)
        ports = {name: free_port() for name in ("n1", "n2", "n3", "router", "processor")}
        processor = ServerProcess(
            "processor",
            "statehouse.cli",
            {
                "bootstrap": kafka.bootstrap,
                "metrics-port": ports["processor"],
                "checkpoint-dir": folder / "checkpoints",
                "heartbeat-interval-ms": 500,
                "session-timeout-ms": 6_000,
                "num-standby-replicas": 1,
                "shuffle-partitions": 2,
            },
            0,
            folder,
            words=["process", "examples.page_views.topology"],
        )
        servers.processes.append(processor.start())
        nodes = {name: servers.node(name, metrics_port=ports[name]) for name in ("n1", "n2", "n3")}
        router = servers.router(metrics_port=ports["router"])
        samples.send(kafka.bootstrap, [samples.Sample("views", None, page) for page in PAGES])
        poll_until(lambda: _answers(router), 240, "a lookup to be answered")
        jobs = {
            "statehouse-node": [ports[name] for name in nodes],
            "statehouse-router": [ports["router"]],
            "statehouse-processor": [ports["processor"]],
        }
        with _in_use(kafka.bootstrap, router), Prometheus(folder, jobs, APPLICATION) as prometheus:
            yield Watched(nodes, prometheus)


def _answers(router: ServerProcess) -> bool:
    try:
        return router.get(PAGES[0], store=STORE).found
    except LookupFailure:
        return False


def _resolved(expression: str) -> str:
    return expression.replace("$application", APPLICATION).replace("$__rate_interval", "30s")


def test_a_killed_node_has_its_alerts_fire_and_resolve_and_pages_nobody(watched: Watched):
    poll_until(lambda: len(watched.prometheus.query("up == 1")) == 5, 60, "all to be scraped")
    poll_until(lambda: not watched.firing(), 120, "all to be well")
    watched.nodes["n1"].kill()
    poll_until(lambda: "StatehouseTargetDown" in watched.firing(), 180, "the alert to fire")
    (down,) = [each for each in watched.prometheus.alerts() if each["alertname"] == "StatehouseTargetDown"]
    assert (down["job"], down["severity"], down["application"]) == ("statehouse-node", "warning", APPLICATION)
    assert not [each for each in watched.prometheus.alerts() if each["severity"] == "critical"], "its standbys answer"
    watched.nodes["n1"].start()
    poll_until(lambda: not watched.firing(), 240, "the alerts to resolve")


def test_every_query_of_the_dashboards_returns_data(watched: Watched):
    queries = list(dashboard_queries())
    assert len(queries) > 60
    left = {(board, panel, query) for board, panel, query in queries}

    def all_returned() -> bool:
        for each in sorted(left):
            series = watched.prometheus.query(_resolved(each[2]))
            if any(value != "NaN" for found in series for value in found["value"][1:]):
                left.discard(each)
        return not left

    with contextlib.suppress(AssertionError):
        poll_until(all_returned, 180, "data")
    assert sorted(left) == []


def test_every_expression_of_the_rules_can_be_evaluated(watched: Watched):
    for alert in alerts().values():
        watched.prometheus.query(alert["expr"])


def test_what_is_recorded_is_there(watched: Watched):
    names = {rule["record"] for rule in rules() if "record" in rule}
    assert names
    assert [name for name in sorted(names) if not watched.prometheus.query(name)] == []
