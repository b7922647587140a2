"""A query that dies, without Spark: when it is started again, and when not."""

from __future__ import annotations

import pytest
from pyspark.errors import StreamingQueryException

from processor.reports.commits import QueryFailure, Superseded
from processor.run.supervision import QueryDied, StartedQuery, SupervisedQuery
from processor.states.lifecycle import QueryState
from statehouse.errors import ConfigurationError
from tests.support.settings import policy

POLICY = policy(max_query_restarts=2)
IN_A_WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "lru.py", line 1, in main
statehouse.errors.ConfigurationError: key b'k' has two updates
"""


class Query:
    def __init__(self):
        self.isActive = True  # its name in Spark
        self.raised: Exception | None = None
        self.stops = 0

    def exception(self):
        return self.raised

    def stop(self):
        self.stops += 1
        self.isActive = False

    def die(self, reason: str = "the disk is full"):
        self.isActive, self.raised = False, StreamingQueryException(reason)


class Sink:
    def __init__(self):
        self.failure: BaseException | None = None
        self.committed: int | None = None
        self.is_idle = True

        self.drained: list[float] = []

    def drain(self, timeout_s: float):
        self.drained.append(timeout_s)
        return True


class Starts:
    """What a query's `begin` made so far."""

    def __init__(self):
        self.made: list[StartedQuery] = []
        self.refusals: list[Exception] = []

    def __call__(self):
        if self.refusals:
            raise self.refusals.pop(0)
        self.made.append(StartedQuery(Query(), Sink()))
        return self.made[-1]


@pytest.fixture
def starts():
    return Starts()


@pytest.fixture
def restarts():
    return []


@pytest.fixture
def query(starts: Starts, restarts: list[str]):
    return SupervisedQuery("boards", starts, POLICY, lambda: restarts.append("boards"))


def test_a_query_that_died_begins_anew_after_its_pause_with_a_sink_of_its_own(
    query: SupervisedQuery, starts: Starts, restarts: list[str]
):
    query.look(0.0)
    starts.made[0].query.die()
    query.look(10.0)
    assert not query.is_idle, "a dead query must not look like one that has nothing to do"
    query.look(10.9)
    assert len(starts.made) == 1
    query.look(11.0)
    assert len(starts.made) == 2
    assert starts.made[1].sink is not starts.made[0].sink
    assert starts.made[0].query.stops == 1, "the first must be over"
    assert query.is_idle
    assert restarts == ["boards"]
    query.look(12.0)
    query.finish()
    query.stop(1.0)
    assert starts.made[1].sink.drained == [0.0, 1.0]
    assert starts.made[1].query.stops == 1


def test_it_ends_with_the_reason_when_it_dies_too_often(query: SupervisedQuery, starts: Starts):
    now = 0.0
    for _ in range(2):
        starts.made[-1].query.die()
        query.look(now)
        query.look(now := now + 30.0)
    starts.made[-1].query.die()
    with pytest.raises(QueryDied, match=r"query boards ended \(restarts before: 2\): .*the disk is full"):
        query.look(now)


def test_a_query_that_can_not_be_started_is_in_error(starts: Starts):
    states: list[QueryState] = []
    starts.refusals.append(ConfigurationError("no such directory"))
    with pytest.raises(ConfigurationError):
        SupervisedQuery("boards", starts, POLICY, on_state=states.append)
    assert states == [QueryState.ERROR]


def test_a_batch_that_was_committed_meanwhile_is_progress(starts: Starts):
    query = SupervisedQuery("boards", starts, policy(max_query_restarts=1, query_restart_window_ms=5_000))
    for now, committed in ((0.0, 3), (100.0, 4)):
        starts.made[-1].sink.committed = committed
        starts.made[-1].query.die()
        query.look(now)
        query.look(now + 50.0)
    assert len(starts.made) == 3
    starts.made[-1].query.die()
    with pytest.raises(QueryDied):
        query.look(200.0)


@pytest.mark.parametrize("failure", [Superseded("another one publishes"), ConfigurationError("it can't be")])
def test_what_cannot_change_is_final(query: SupervisedQuery, starts: Starts, failure: Exception):
    starts.made[0].sink.failure = failure
    starts.made[0].query.die("java.lang.Exception: " + str(failure))
    with pytest.raises(QueryDied, match=f"query boards ended: {failure}"):
        query.look(0.0)


def test_a_refusal_in_a_worker_is_final_too(query: SupervisedQuery, starts: Starts):
    starts.made[0].query.die(IN_A_WORKER)
    with pytest.raises(QueryDied, match="key b'k' has two updates"):
        query.look(0.0)


def test_a_start_that_fails_is_a_death_as_any_other(query: SupervisedQuery, starts: Starts, restarts: list[str]):
    starts.made[0].query.die()
    query.look(0.0)
    starts.refusals = [StreamingQueryException("the checkpoint is away")]
    query.look(1.0)
    query.look(2.9)
    assert len(starts.made) == 1
    query.look(3.0)
    assert len(starts.made) == 2
    assert len(restarts) == 2
    starts.made[1].query.die()
    with pytest.raises(QueryDied, match="restarts before: 2"):
        query.look(4.0)


def test_a_start_refused_for_good_is_final(query: SupervisedQuery, starts: Starts):
    starts.made[0].query.die()
    query.look(0.0)
    starts.refusals = [ConfigurationError("the checkpoint is another application's")]
    with pytest.raises(QueryDied, match="another application's"):
        query.look(1.0)


def test_the_first_start_s_failure_is_the_caller_s(starts: Starts):
    starts.refusals = [StreamingQueryException("no such column")]
    with pytest.raises(StreamingQueryException):
        SupervisedQuery("boards", starts, POLICY)


@pytest.mark.feature("failures-are-seen")
def test_why_it_fails_is_kept_until_it_has_committed_a_batch_or_has_nothing_left(
    query: SupervisedQuery, starts: Starts
):
    assert query.failure is None
    starts.made[0].query.die("[DIVIDE_BY_ZERO] Division by zero")
    query.look(0.0)
    assert query.failure == QueryFailure(1, "DIVIDE_BY_ZERO", given_up=False)
    query.look(1.0)
    query.look(2.0)
    assert query.failure is not None, "it runs again, and has done nothing yet"
    starts.made[1].sink.committed = 7
    query.look(3.0)
    assert query.failure is None
    starts.made[1].query.die()
    query.look(4.0)
    query.recovered(query.failure)
    assert query.failure is None


@pytest.mark.feature("failures-are-seen")
def test_it_is_restarting_until_it_has_gone_on_and_not_only_while_it_waits(starts: Starts):
    states: list[QueryState] = []
    query = SupervisedQuery("boards", starts, POLICY, on_state=states.append)
    for now in (0.0, 100.0):
        starts.made[-1].query.die()
        query.look(now)
        query.look(now + 50.0)
        assert query.is_idle, "it runs"
    query.look(180.0)
    assert set(states[1:]) == {QueryState.RESTARTING}
    starts.made[-1].sink.committed = 7
    query.look(200.0)
    query.look(200.2)
    assert states == [QueryState.RUNNING, QueryState.RESTARTING, QueryState.RESTARTING, QueryState.RUNNING]


@pytest.mark.feature("failures-are-seen")
def test_one_with_nothing_left_to_process_has_gone_on(starts: Starts):
    states: list[QueryState] = []
    query = SupervisedQuery("boards", starts, POLICY, on_state=states.append)
    starts.made[0].query.die()
    query.look(0.0)
    query.look(1.0)
    assert query.failure is not None
    query.recovered(query.failure)
    query.look(2.0)
    assert states == [QueryState.RUNNING, QueryState.RESTARTING, QueryState.RUNNING]


@pytest.mark.feature("failures-are-seen")
def test_a_recovery_from_an_earlier_failure_erases_no_later_one(query: SupervisedQuery, starts: Starts):
    starts.made[0].query.die()
    query.look(0.0)
    earlier = query.failure
    query.look(1.0)
    starts.made[1].query.die()
    query.look(2.0)
    query.recovered(earlier)
    assert query.failure == QueryFailure(2, "StreamingQueryException", given_up=False)


@pytest.mark.feature("failures-are-seen")
def test_a_query_that_is_given_up_says_so_and_is_looked_at_no_more(query: SupervisedQuery, starts: Starts):
    starts.made[0].sink.failure = ConfigurationError("it can't be")
    starts.made[0].query.die()
    with pytest.raises(QueryDied):
        query.look(0.0)
    assert query.is_given_up
    assert not query.is_idle
    assert query.failure == QueryFailure(0, "ConfigurationError", given_up=True)
    query.look(100.0)
    assert len(starts.made) == 1
