"""Spark stops: answers go on and say for how long, and callers that bound that are refused, on every replica."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

import pytest
from structlog import get_logger

from examples.leaderboard.topology import application_id
from statehouse.client import Client, Freshness
from statehouse.contract.topology import commits_topic
from statehouse.errors import LookupFailure, Reason, reason_from_number
from statehouse.local.cluster import LocalCluster
from tests.e2e.conftest import is_settled
from tests.integration.processor.support import messages
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(600)

log = get_logger(__name__)

STORE: Final = "leader-boards"
KEY: Final = "1"
REFUSED: Final = {Reason.PROCESSOR_AGE_EXCEEDS_BOUND}
# How far a bound may be off, and what an answer says of the age.
TOLERANCE_S: Final = 1.0
TIMEOUT_S: Final = 30.0


class Silence:
    """Asks for a key in all ways, with a bound and without, while the processor says nothing."""

    def __init__(self, cluster: LocalCluster, ways: Mapping[str, Client], bound_s: float) -> None:
        self._cluster, self._ways = cluster, ways
        self._bound = Freshness(max_processor_age_ms=round(bound_s * 1000))
        self.bound_s, self.last_report_s = bound_s, last_report_s(cluster)
        self.asked, self.worst_s = 0, 0.0
        self.first_refused_s: dict[str, float] = {}
        self.last_answered_s: dict[str, float] = {}

    def ask(self) -> None:
        """Ask in every way, and hold what comes against the clock."""
        for way, client in self._ways.items():
            began = self.silent_s
            answer = client.get(STORE, KEY)
            assert answer.found
            assert answer.processor_age_ms is not None
            told_s, ended = answer.processor_age_ms / 1000, self.silent_s
            off_s = max(began - told_s, told_s - ended, 0.0)
            assert off_s <= TOLERANCE_S, f"{way}: {told_s} s, it was {began:.1f} to {ended:.1f}"
            self.worst_s = max(self.worst_s, off_s)
            began = self.silent_s
            refused = self._is_refused(client)
            ended = self.silent_s
            if refused:
                assert ended >= self.bound_s - TOLERANCE_S, f"{way}: refused after {ended:.1f} s"
                self.first_refused_s.setdefault(way, ended)
            else:
                assert began <= self.bound_s + TOLERANCE_S, f"{way}: answered after {began:.1f} s"
                self.last_answered_s[way] = began
            self.asked += 1

    @property
    def silent_s(self) -> float:
        return time.time() - self.last_report_s

    def _is_refused(self, client: Client) -> bool:
        try:
            client.get(STORE, KEY, freshness=self._bound)
        except LookupFailure as error:
            failure = error
        else:
            return False
        said = {reason_from_number(each.reason) for each in failure.candidates} or {failure.reason}
        assert said == REFUSED, str(failure)
        return True

    def is_over(self) -> bool:
        """Whether the bound is kept again in every way."""
        return not any(self._is_refused(client) for client in self._ways.values())


@contextmanager
def every_way(cluster: LocalCluster, client: Client) -> Iterator[Mapping[str, Client]]:
    """Yield clients of the router, of each node that has the key, and one that goes straight to nodes."""
    place = client.locate(STORE, KEY)
    with ExitStack() as stack:
        ways = {
            name: stack.enter_context(Client(cluster.node(name).address, timeout=TIMEOUT_S, direct=False))
            for name in (candidate.host.instance_id for candidate in place.candidates)
        }
        ways["router"] = stack.enter_context(Client(cluster.router.address, timeout=TIMEOUT_S, direct=False))
        ways["straight"] = stack.enter_context(Client(cluster.router.address, timeout=TIMEOUT_S))
        yield ways


def last_report_s(cluster: LocalCluster) -> float:
    return max(message.timestamp()[1] for message in messages(cluster.bootstrap, commits_topic(application_id))) / 1000


def answers(client: Client) -> bool:
    try:
        return client.get(STORE, KEY).found
    except LookupFailure:  # a machine that stalls takes long to connect
        return False


def stop_reporting(
    cluster: LocalCluster,
    client: Client,
    *,
    bound_s: float,
    silent_s: float,
    stop: Callable[[], None],
    go_on: Callable[[], None],
) -> None:
    """Stop the processor for a while, and ask all the time."""
    poll_until(partial(answers, client), 60, "a connection of the router")
    poll_until(lambda: is_settled(client), 60, "a caught-up standby of every partition")
    fresh = Freshness(max_processor_age_ms=3_000, max_input_backlog=0)

    def is_fresh() -> bool:
        try:
            return client.get(STORE, KEY, freshness=fresh).input_backlog == 0
        except LookupFailure:
            return False

    poll_until(is_fresh, 60, "a processor that has nothing to do")
    with every_way(cluster, client) as ways:
        assert len(ways) == 4, "an active and a standby, through the router and straight"
        for way, each in ways.items():
            poll_until(partial(answers, each), 60, f"a connection of {way}")
        stop()
        try:
            silence = Silence(cluster, ways, bound_s)

            def has_lasted() -> bool:
                silence.ask()
                return silence.silent_s > silent_s

            poll_until(has_lasted, silent_s + 30, "the silence to last")
            assert last_report_s(cluster) == silence.last_report_s, "the processor said nothing"
            assert silence.first_refused_s.keys() == ways.keys()
            go_on()
            poll_until(silence.is_over, 120, "a new report on every replica")
            log.info(
                "the processor was silent",
                for_s=round(silent_s, 1),
                asked=silence.asked,
                first_refused_s={way: round(at, 2) for way, at in silence.first_refused_s.items()},
                last_answered_s={way: round(at, 2) for way, at in silence.last_answered_s.items()},
                age_off_by_s=round(silence.worst_s, 3),
            )
        finally:
            go_on()


@pytest.mark.feature("driver-killed-serving")
@pytest.mark.feature("max-processor-age")
@pytest.mark.long
def test_the_age_grows_while_the_driver_is_frozen_and_its_bound_holds(cluster: LocalCluster, client: Client):
    driver = cluster.processor.process
    stop_reporting(
        cluster,
        client,
        bound_s=2.0,
        silent_s=4.0,
        stop=lambda: driver.signal(signal.SIGSTOP),
        go_on=lambda: driver.signal(signal.SIGCONT),
    )


@pytest.mark.feature("driver-killed-serving")
@pytest.mark.feature("max-processor-age")
@pytest.mark.long
def test_spark_is_stopped_for_a_minute(cluster: LocalCluster, client: Client):
    def start() -> None:
        if not cluster.processor.is_running:
            cluster.processor.start()

    stop_reporting(cluster, client, bound_s=10.0, silent_s=60.0, stop=cluster.processor.kill, go_on=start)
