"""The clients, against a router in this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from statehouse.client import (
    Answer,
    AsyncClient,
    Client,
    Freshness,
    InputRecord,
    KeyedSession,
    Lookup,
    Session,
    VersionedRecord,
    Window,
    frames,
)
from statehouse.errors import LookupFailure, Reason
from statehouse.local.ports import free_port
from statehouse.runtime.backoff import BackoffPolicy
from statehouse.v1 import fleet_service_pb2, query_service_pb2
from tests.support.fake_router import UNREACHABLE, WRITTEN_MS, FakeRouter, fake_router
from tests.support.polling import poll_until


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with fake_router() as running:
        running.values = {"1": [{"score": 4000}], "6": {"score": 12.5}, "a": None}
        yield running


@pytest.fixture
def client(router: FakeRouter) -> Iterator[Client]:
    with Client(router.target) as connected:
        yield connected


def test_get_gives_the_value_and_its_proof(client: Client):
    answer = client.get("boards", "1")

    assert answer.found
    assert answer.value == [{"score": 4000}]
    assert (answer.partition, answer.epoch, answer.role) == (3, 5, "ACTIVE")
    assert (answer.position, answer.lag, answer.staleness_ms) == (12, 0, 40)
    assert str(answer.host) == "node-a (127.0.0.1:7101)"


def test_an_absent_key_is_an_answer(client: Client):
    answer = client.get("boards", "nope")

    assert not answer.found
    assert answer.partition == 3


@pytest.mark.feature("get-value-typed")
def test_raw_gives_the_bytes_as_stored(client: Client):
    assert client.get("boards", b"6", raw=True).value == b'{"score":12.5}'


def test_bounds_travel_with_the_request(client: Client, router: FakeRouter):
    client.get("boards", "1", freshness=Freshness(active_only=True, max_lag=0, max_staleness_ms=250))

    freshness = router.requests[-1].freshness
    assert (freshness.active_only, freshness.max_lag, freshness.max_staleness_ms) == (True, 0, 250)


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_scan_crosses_pages(client: Client, page_size: int):
    assert [entry.key for entry in client.scan("boards", page_size=page_size)] == ["1", "6", "a"]


def test_scan_takes_a_range_a_prefix_and_a_direction(client: Client):
    assert [entry.key for entry in client.scan("boards", from_key="1", to_key="6", reverse=True)] == ["6", "1"]
    assert [entry.key for entry in client.scan("boards", prefix="a")] == ["a"]
    assert [entry.key for entry in client.scan("boards", from_key="6", raw=True)] == [b"6", b"a"]


@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_scan_windows_crosses_pages(client: Client, page_size: int):
    windows = list(client.scan_windows("boards", page_size=page_size))

    assert [(each.key, each.start_ms, each.end_ms) for each in windows] == [
        (key, start_ms, start_ms + 1_000) for key in ("1", "6", "a") for start_ms in (0, 1_000)
    ]
    assert windows[2].value == {"score": 12.5}


def test_scan_windows_takes_ranges_of_keys_and_time_and_a_direction(client: Client):
    def found(**fields: object) -> list[tuple[object, int]]:
        return [(each.key, each.start_ms) for each in client.scan_windows("boards", **fields)]

    assert found(from_key="6", to_key="6", reverse=True) == [("6", 1_000), ("6", 0)]
    assert found(prefix="a", from_ms=1) == [("a", 1_000)]
    assert found(to_ms=999) == [("1", 0), ("6", 0), ("a", 0)]


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_the_windows_and_sessions_of_a_key_cross_pages(client: Client, page_size: int):
    windows = list(client.fetch_windows("boards", "6", page_size=page_size))
    sessions = list(client.fetch_sessions("boards", "6", page_size=page_size))

    value = {"score": 12.5}
    assert windows == [Window(start_ms, start_ms + 1_000, value, WRITTEN_MS) for start_ms in (0, 1_000, 2_000)]
    assert sessions == [Session(start_ms, start_ms + 500, value, WRITTEN_MS) for start_ms in (0, 1_000, 2_000)]


def test_the_windows_and_sessions_of_a_key_take_a_span_and_a_direction(client: Client):
    def starts(fetch: Callable[..., Iterator[Window | Session]], **fields: object) -> list[int]:
        return [each.start_ms for each in fetch("boards", "6", **fields)]

    assert starts(client.fetch_windows, from_ms=1, reverse=True) == [2_000, 1_000]
    assert starts(client.fetch_windows, from_ms=1, to_ms=1_000) == [1_000]
    assert starts(client.fetch_sessions, from_ms=500, to_ms=1_000, reverse=True) == [1_000, 0]
    assert list(client.fetch_sessions("boards", "nope")) == []
    assert next(client.fetch_windows("boards", "6", raw=True)).value == b'{"score":12.5}'


@pytest.mark.parametrize("page_size", [1, 3, 100])
def test_scan_sessions_crosses_pages(client: Client, page_size: int):
    sessions = list(client.scan_sessions("boards", page_size=page_size))

    assert [(each.key, each.start_ms, each.end_ms) for each in sessions] == [
        (key, start_ms, start_ms + 500) for key in ("1", "6", "a") for start_ms in (0, 1_000)
    ]
    assert sessions[2] == KeyedSession("6", 0, 500, {"score": 12.5}, WRITTEN_MS)
    spanned = client.scan_sessions("boards", from_key="6", from_ms=501, to_ms=1_000, reverse=True, page_size=page_size)
    assert [(each.key, each.start_ms) for each in spanned] == [("a", 1_000), ("6", 1_000)]


@pytest.mark.parametrize("page_size", [1, 2, 100])
def test_the_history_of_a_key_crosses_pages(client: Client, page_size: int):
    value = {"score": 12.5}
    versions = [
        VersionedRecord(value, 0, 1_000),
        VersionedRecord(value, 1_000, 2_000),
        VersionedRecord(value, 2_000, None),
    ]
    assert list(client.get_history("boards", "6", page_size=page_size)) == versions
    assert list(client.get_history("boards", "6", reverse=True, page_size=page_size)) == versions[::-1]
    assert list(client.get_history("boards", "6", from_ms=1_000, to_ms=1_999, page_size=page_size)) == versions[1:2]


def test_entries_come_with_their_records_timestamps(client: Client, router: FakeRouter):
    assert client.get("boards", "6").timestamp_ms == WRITTEN_MS
    assert client.get("boards", "nope").timestamp_ms is None
    assert {entry.timestamp_ms for entry in client.scan("boards")} == {WRITTEN_MS}
    assert {window.timestamp_ms for window in client.scan_windows("boards")} == {WRITTEN_MS}


def test_a_scan_as_of_a_time_asks_for_it_on_each_page(client: Client, router: FakeRouter):
    assert len(list(client.scan("boards", as_of_ms=1_500, page_size=1))) == 3
    assert [request.as_of_ms for request in router.requests] == [1_500] * 3
    next(client.scan("boards"))
    assert not router.requests[-1].HasField("as_of_ms")


def test_the_windows_of_a_key_are_read_no_further_than_asked(client: Client, router: FakeRouter):
    next(client.fetch_windows("boards", "6", page_size=1, freshness=Freshness(max_lag=2)))

    assert [request.freshness.max_lag for request in router.requests] == [2]


def test_get_as_of_gives_the_value_then_and_since_when_it_held(client: Client, router: FakeRouter):
    answer = client.get_as_of("boards", "6", 1_500, freshness=Freshness(active_only=True))

    assert (answer.found, answer.value, answer.timestamp_ms, answer.role) == (True, {"score": 12.5}, 1_000, "ACTIVE")
    assert (router.requests[-1].as_of_ms, router.requests[-1].freshness.active_only) == (1_500, True)
    before = client.get_as_of("boards", "6", 0)
    assert (before.found, before.value, before.timestamp_ms) == (False, None, None)
    assert client.get_as_of("boards", "6").found, "the latest"


def test_a_batch_has_an_outcome_for_each_key(client: Client, router: FakeRouter):
    wanted = Lookup("boards", b"6", Freshness(max_lag=1), raw=True)
    there, wrong, absent = client.batch_get([wanted, Lookup("nowhere", "1"), Lookup("boards", "nope")])

    assert isinstance(there, Answer)
    assert (there.value, there.partition) == (b'{"score":12.5}', 3)
    assert isinstance(wrong, LookupFailure)
    assert wrong.reason is Reason.UNKNOWN_STORE
    assert isinstance(absent, Answer)
    assert not absent.found
    assert router.requests[-1].requests[0].freshness.max_lag == 1
    assert client.batch_get([]) == []


@pytest.mark.parametrize(("entries", "answers"), [(1_000, 1_000), (7, 1_000), (1_000, 3), (7, 3)])
def test_a_batch_too_big_is_split_and_never_failed(client: Client, router: FakeRouter, entries: int, answers: int):
    router.values = {str(number): number for number in range(1_050)}
    router.max_batch_entries, router.max_batch_answers = entries, answers

    outcomes = client.batch_get(Lookup("boards", key) for key in router.values)

    assert [each.value for each in outcomes if isinstance(each, Answer)] == list(range(1_050))


@pytest.mark.feature("batches-pages-bounded")
def test_a_batch_too_large_for_a_message_is_split(router: FakeRouter):
    keys = [f"{number}{'x' * 1_000}" for number in range(30)]
    with Client(router.target, max_message_bytes=5_000) as client:
        outcomes = client.batch_get(Lookup("boards", key) for key in keys)

    assert [isinstance(each, Answer) for each in outcomes] == [True] * 30
    assert max(request.ByteSize() for request in router.requests) <= 5_000


def test_what_no_splitting_helps_is_the_outcome_of_its_keys(client: Client, router: FakeRouter):
    router.max_batch_answers = 0
    large = client.batch_get([Lookup("boards", "1"), Lookup("nowhere", "1"), Lookup("boards", "6")])
    router.failure = LookupFailure(Reason.OVERLOADED, "too much")
    calls = len(router.requests)
    failed = client.batch_get([Lookup("boards", "1"), Lookup("boards", "6")])

    reasons = [each.reason for each in large + failed if isinstance(each, LookupFailure)]
    assert reasons[:3] == [Reason.MESSAGE_TOO_LARGE, Reason.UNKNOWN_STORE, Reason.MESSAGE_TOO_LARGE]
    assert reasons[3:] == [Reason.OVERLOADED] * 2
    assert len(router.requests) == calls + 1, "it is not asked again"


def test_a_scan_reads_no_further_than_it_is_asked(client: Client, router: FakeRouter):
    next(client.scan("boards", page_size=1))

    assert len(router.requests) == 1


@pytest.mark.feature("querystore-queries-custom")
def test_a_custom_query_takes_json_and_gives_json(client: Client, router: FakeRouter):
    arguments = {"item": "ü", "numbers": [1, 2.5, None], "deep": {"yes": True}}
    answer = client.query_store("boards", "k", "estimate", arguments, freshness=Freshness(max_lag=3))

    assert answer.result == {"query": "estimate", **arguments}
    assert (answer.replica.role, router.requests[-1].freshness.max_lag) == ("ACTIVE", 3)
    assert client.query_store("boards", b"k", "estimate").result == {"query": "estimate"}
    with pytest.raises(ValueError, match="not JSON"):
        client.query_store("boards", "k", "estimate", {"item": b"bytes"})  # type: ignore[dict-item]


def test_count_and_locate_and_fleet(client: Client):
    assert client.count("boards", exact=True).count == 3
    assert client.count("boards").exact is False
    place = client.locate("boards", "1")
    assert place.active is not None
    assert place.active.instance_id == "node-a"
    assert [(c.eligible, c.reason) for c in place.candidates] == [(False, "UNREACHABLE")]
    fleet = client.fleet()
    assert fleet.tasks[0].replicas[0].lag == 7
    assert fleet.tasks[0].replicas[0].position is None


@pytest.mark.parametrize(("partition", "offset"), [(-1, 0), (0, -1001)])
def test_what_was_not_delivered_is_no_input_record(partition: int, offset: int):
    with pytest.raises(ValueError, match=f"clicks:{partition}:{offset}: partition and offset must not be negative"):
        InputRecord("clicks", partition, offset)


def test_a_failure_keeps_its_reason_and_candidates(client: Client, router: FakeRouter):
    router.failure = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "none", candidates=[UNREACHABLE])

    with pytest.raises(LookupFailure) as caught:
        client.get("boards", "1")

    assert caught.value.reason is Reason.NO_REPLICA_AVAILABLE
    assert caught.value.candidates == (UNREACHABLE,)


def test_a_scan_fails_like_a_lookup(client: Client):
    with pytest.raises(LookupFailure, match="UNKNOWN_STORE"):
        list(client.scan("nowhere"))


def test_an_absent_router_is_named():
    target = f"127.0.0.1:{free_port()}"
    with Client(target) as client, pytest.raises(LookupFailure, match=f"{target} can't be reached") as caught:
        client.get("boards", "1")

    assert caught.value.reason is Reason.UNREACHABLE


def test_a_silent_router_costs_the_timeout_and_no_more(router: FakeRouter, client: Client):
    answering = threading.Event()
    router.values = _Blocking(answering)
    try:
        with pytest.raises(LookupFailure, match=r"gave no answer within 0\.2 s") as caught:
            client.count("boards", timeout=0.2)
    finally:
        answering.set()

    assert caught.value.reason is Reason.DEADLINE_EXCEEDED


class _Blocking(dict):
    """Values that can't be counted before `event`."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def __len__(self) -> int:
        self._event.wait(10)
        return 0


def test_a_closed_client_closes_twice_and_threads_share_an_open_one(router: FakeRouter):
    client = Client(router.target)
    answers: list[bool] = []
    threads = [threading.Thread(target=lambda: answers.append(client.get("boards", "1").found)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    client.close()

    assert answers == [True] * 4


def test_whoever_waits_while_the_client_is_closed_is_told_so(router: FakeRouter, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frames, "_AGAIN", BackoffPolicy("for_long", first_s=600.0, longest_s=600.0))
    client = Client(router.target)
    batches = client.arrow_batches("boards", patience=3_600)
    next(batches)
    router.failure = LookupFailure(Reason.NO_REPLICA_AVAILABLE, "a node restarts")
    told: list[LookupFailure] = []

    def read() -> None:
        try:
            list(batches)
        except LookupFailure as failure:
            told.append(failure)

    asked = len(router.requests)
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    poll_until(lambda: len(router.requests) > asked, 20, "a page to be asked for")
    client.close()
    reading.join(20)
    assert [failure.reason in {Reason.UNREACHABLE, Reason.NO_REPLICA_AVAILABLE} for failure in told] == [True]


async def test_calls_of_a_closed_client_fail_as_others_do(router: FakeRouter):
    blocking, asynchronous = Client(router.target), AsyncClient(router.target)
    assert blocking.get("boards", "1").found
    assert (await asynchronous.get("boards", "1")).found
    blocking.close()
    await asynchronous.close()
    with pytest.raises(LookupFailure, match="the client was closed"):
        blocking.get("boards", "1")
    with pytest.raises(LookupFailure, match="the client was closed"):
        blocking.count("boards")
    with pytest.raises(LookupFailure, match="the client was closed"):
        await asynchronous.count("boards")


@pytest.mark.feature("python-client-sync")
async def test_the_async_client_does_the_same(router: FakeRouter):
    async with AsyncClient(router.target) as client:
        assert (await client.get("boards", "1")).value == [{"score": 4000}]
        assert [entry.key async for entry in client.scan("boards", page_size=2)] == ["1", "6", "a"]
        assert (await client.get_as_of("boards", "1")).timestamp_ms == 1_000
        assert len(await client.batch_get([Lookup("boards", "1"), Lookup("boards", "6")])) == 2
        assert len([window async for window in client.fetch_windows("boards", "1", page_size=2)]) == 3
        assert len([session async for session in client.fetch_sessions("boards", "1", page_size=2)]) == 3
        assert len([window async for window in client.scan_windows("boards", page_size=2)]) == 6
        assert len([session async for session in client.scan_sessions("boards", page_size=2)]) == 6
        assert len([version async for version in client.get_history("boards", "1", page_size=2)]) == 3
        with pytest.raises(LookupFailure, match="UNKNOWN_STORE"):
            await client.count("nowhere")


def numbered(router: FakeRouter) -> None:
    """Have the router tell of a store of longs."""
    router.fleet = fleet_service_pb2.GetFleetResponse(epoch=5)
    router.fleet.stores.add(name="boards", key_serde="long", value_serde="json", partition_count=1)
    router.values = {"5": 50, "-2": -20}


def test_a_number_is_written_as_the_key_serde_has_it(client: Client, router: FakeRouter):
    numbered(router)
    for read in (
        lambda: client.get("boards", 5),
        lambda: client.get_as_of("boards", 5),
        lambda: list(client.fetch_windows("boards", 5)),
        lambda: list(client.fetch_sessions("boards", 5)),
        lambda: list(client.get_history("boards", 5)),
        lambda: client.query_store("boards", 5, "top"),
        lambda: client.locate("boards", 5),
        lambda: client.session().get("boards", 5),
    ):
        read()
        assert router.requests[-1].key.text == "5"
    client.explain("boards", 5)
    assert router.requests[-1].lookup.key.text == "5"
    with client.watch("boards", 5) as watch:
        router.ending = LookupFailure(Reason.TASK_FAILED, "over")
        with pytest.raises(LookupFailure, match="over"):
            next(watch)
    assert router.requests[-1].key.text == "5"
    for scan in (client.scan, client.scan_windows, client.scan_sessions):
        list(scan("boards", from_key=-2, to_key=5))
        assert (router.requests[-1].from_key.text, router.requests[-1].to_key.text) == ("-2", "5")


def test_what_is_no_key_is_said_at_once(client: Client, router: FakeRouter):
    numbered(router)
    key: Any
    for key in (5.0, True, None, [5], object()):
        for read in (
            lambda key: client.get("boards", key),
            lambda key: client.batch_get([Lookup("boards", "5"), Lookup("boards", key)]),
            lambda key: (
                list(client.scan("boards", from_key="1", to_key=key)) if key is not None else client.get("boards", key)
            ),
            lambda key: client.locate("boards", key),
            lambda key: list(client.fetch_windows("boards", key)),
        ):
            with pytest.raises(TypeError, match=r"give|can't be of type"):
                read(key)
    with pytest.raises(TypeError, match="numbers have no prefix"):
        list(client.scan("boards", prefix=1))  # type: ignore[arg-type] # what a type checker would say
    with pytest.raises(TypeError, match="numbers have no prefix"):
        client.watch("boards", prefix=1)  # type: ignore[arg-type] # as above
    assert not [each for each in router.requests if isinstance(each, query_service_pb2.GetRequest)]


def test_a_number_that_no_serde_has_fails_alone(client: Client, router: FakeRouter):
    numbered(router)
    failed, unknown = client.batch_get([Lookup("boards", 2**63), Lookup("nowhere", 1)])
    assert isinstance(failed, LookupFailure)
    assert failed.reason is Reason.INVALID_KEY
    assert isinstance(unknown, LookupFailure)
    assert unknown.reason is Reason.UNKNOWN_STORE


@pytest.mark.parametrize("reason", [Reason.PERMISSION_DENIED, Reason.UNREACHABLE])
def test_who_is_not_told_the_serdes_gives_text(router: FakeRouter, reason: Reason):
    with Client(router.target, direct=False) as client:
        router.failure = LookupFailure(reason, "you may not")
        with pytest.raises(TypeError if reason is Reason.PERMISSION_DENIED else LookupFailure, match="you may not"):
            client.get("boards", 5)


def test_documents_are_asked_for_as_they_are_written(client: Client, router: FakeRouter):
    """Or a number in them would be a 64-bit float on its way."""
    for raw in (False, True):
        for read in (
            lambda raw: client.get("boards", "1", raw=raw),
            lambda raw: client.get_as_of("boards", "1", raw=raw),
            lambda raw: list(client.scan("boards", raw=raw)),
            lambda raw: list(client.scan_windows("boards", raw=raw)),
            lambda raw: list(client.scan_sessions("boards", raw=raw)),
            lambda raw: list(client.fetch_windows("boards", "1", raw=raw)),
            lambda raw: list(client.fetch_sessions("boards", "1", raw=raw)),
            lambda raw: list(client.get_history("boards", "1", raw=raw)),
        ):
            read(raw)
            assert router.requests[-1].json_text is not raw
        client.explain("boards", "1", raw=raw)
        assert router.requests[-1].lookup.json_text is not raw
        client.batch_get([Lookup("boards", "1", raw=raw), Lookup("boards", "6", raw=raw)])
        assert [each.json_text for each in router.requests[-1].requests] == [not raw] * 2


def test_the_arguments_of_a_query_are_exact(client: Client, router: FakeRouter):
    client.query_store("boards", "1", "top", {"above": 2**53 + 1, "text": "9007199254740993"})
    request = router.requests[-1]
    assert json.loads(request.arguments_text) == {"above": 2**53 + 1, "text": "9007199254740993"}
    assert request.arguments.fields["above"].string_value == str(2**53 + 1), "for nodes of an earlier version"
    assert request.json_text
