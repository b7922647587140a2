"""A node on a real broker shows each batch as it was, of stores on disk and in memory, in the program and in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from processor.reports.commits import StoreChangelog
from statehouse.contract.moments import Asked, MomentBound, MomentToken
from statehouse.contract.partitioning import partition_for
from statehouse.contract.topology import SESSION, VERSIONED, WINDOW
from statehouse.errors import LookupFailure, Reason
from statehouse.keys.composite import SessionKey, WindowKey
from statehouse.local.kafka import EmbeddedKafka
from statehouse.local.ports import free_port
from statehouse.v1 import query_service_pb2, types_pb2
from tests.support.batches import BatchWriter, Placed
from tests.support.fleet import Fleet, ServerProcess
from tests.support.metrics import scrape
from tests.support.polling import poll_until
from tests.support.refusals import why_refused
from tests.support.shared import ServedStore, new_store, shared_fleet

QUERY = "query-1"
NEWEST = MomentBound().to_proto()


@pytest.fixture(scope="module", params=["go", "python"])
def node(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Fleet, ServerProcess]]:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, f"moments-{request.param}", partitions=2) as fleet:
        yield fleet, fleet.node("n1", engine=request.param, position_wait_timeout_ms=20_000)


def exactly(batch_id: int, query_id: str = QUERY, wait_ms: int | None = None) -> types_pb2.MomentBound:
    return MomentBound(Asked.EXACTLY, MomentToken({query_id: batch_id}), wait_ms).to_proto()


def at_least(batch_id: int) -> types_pb2.MomentBound:
    return MomentBound(Asked.AT_LEAST, MomentToken({QUERY: batch_id})).to_proto()


class Written:
    """A store, and batches in which each key has the batch's id as its value; key `a` is in each, `b` in even ones."""

    def __init__(self, store: ServedStore) -> None:
        self.store = store
        changelog = StoreChangelog(store.name, store.changelog, 2)
        self.writer = BatchWriter(store.bootstrap, store.fleet.application_id, [changelog], QUERY, query=store.name)
        self.next = 0

    def batch(self, count: int = 1) -> None:
        for batch_id in range(self.next, self.next + count):
            records = [Placed(self.store.name, 0, b"a", str(batch_id).encode())]
            if batch_id % 2 == 0:
                records.append(Placed(self.store.name, 1, b"b", str(batch_id).encode()))
            records.append(Placed(self.store.name, 0, b"gone", None if batch_id % 3 else b"here"))
            self.writer.write(batch_id, records)
        self.next += count

    def get(
        self, key: str, moment: types_pb2.MomentBound, partition: int | None = None
    ) -> query_service_pb2.GetResponse:
        forwarding = types_pb2.Forwarding(partition=partition) if partition is not None else None
        request = query_service_pb2.GetRequest(
            store=self.store.name,
            key=types_pb2.Key(text=key),
            freshness=types_pb2.Freshness(moment=moment),
            forwarding=forwarding,
        )
        answer: query_service_pb2.GetResponse = self.store.node.call(self.store.node.query.Get, request)
        return answer

    def oldest(self) -> dict[int, int | None]:
        """Return the oldest batch of each partition, as the node tells."""
        stores = (each for task in self.store.node.node().tasks for each in task.stores)
        return {
            each.partition: each.oldest_batch if each.HasField("oldest_batch") else None
            for each in stores
            if each.store == self.store.name
        }

    def value(self, key: str, batch_id: int, partition: int) -> str | None:
        answer = self.get(key, exactly(batch_id), partition)
        assert answer.replica.moment == types_pb2.Moment(query_id=QUERY, batch_id=batch_id)
        return answer.value.text if answer.found else None


@pytest.fixture(params=[{}, {"in_memory": True}], ids=["disk", "memory"])
def written(
    node: tuple[Fleet, ServerProcess], unique_name: Callable[[str], str], request: pytest.FixtureRequest
) -> Iterator[Written]:
    fleet, process = node
    spec: dict[str, Any] = request.param
    store = Written(new_store(fleet, process, unique_name("store"), committed=True, **spec))
    yield store
    store.writer.close()


@pytest.mark.feature("reads-one-batch")
def test_each_of_the_last_batches_is_shown_as_it_was(written: Written) -> None:
    written.batch(12)
    poll_until(lambda: why_refused(lambda: written.get("a", exactly(11), 0)) is None, 30, "the newest batch")
    for batch_id in range(12):
        assert written.value("a", batch_id, 0) == str(batch_id)
        assert written.value("b", batch_id, 1) == str(batch_id - batch_id % 2)
        assert written.value("gone", batch_id, 0) == (None if batch_id % 3 else "here")
    newest = written.get("a", NEWEST, 0)
    assert (newest.value.text, newest.replica.moment.batch_id) == ("11", 11)
    assert newest.replica.position <= written.store.replica().position
    assert written.get("a", at_least(11), 0).value.text == "11"


def test_old_batches_go_but_for_each_sixteenth(written: Written) -> None:
    written.batch(70)
    poll_until(lambda: why_refused(lambda: written.get("a", exactly(69), 0)) is None, 30, "the newest batch")
    shown = [number for number in range(70) if why_refused(lambda n=number: written.get("a", exactly(n), 0)) is None]  # type: ignore[misc]
    assert shown == [0, 16, 32, *range(38, 70)]
    assert written.oldest() == {0: 0, 1: 0}
    assert why_refused(lambda: written.get("a", exactly(5), 0)) is Reason.MOMENT_GONE
    assert written.value("a", 16, 0) == "16"


def test_a_batch_that_is_not_there_yet_is_waited_for(written: Written) -> None:
    written.batch(2)
    poll_until(lambda: why_refused(lambda: written.get("a", exactly(1), 0)) is None, 30, "the newest batch")
    assert why_refused(lambda: written.get("a", exactly(2, wait_ms=1), 0)) is Reason.MOMENT_NOT_REACHED
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(written.get, "a", at_least(2), 0)
        written.batch(1)
        assert answer.result(30).value.text == "2"


def test_a_range_a_count_and_a_batch_of_lookups_are_of_one_moment(written: Written) -> None:
    written.batch(7)
    poll_until(lambda: why_refused(lambda: written.get("a", exactly(6), 0)) is None, 30, "the newest batch")
    name, node = written.store.name, written.store.node
    freshness = types_pb2.Freshness(moment=exactly(3))
    scan = query_service_pb2.ScanRequest(store=name, partitions=[0, 1], freshness=freshness)
    page = node.call(node.query.Scan, scan)
    assert {entry.key.text: entry.value.text for entry in page.entries} == {"a": "3", "b": "2", "gone": "here"}
    assert {stamp.moment.batch_id for stamp in page.replicas} == {3}
    count = query_service_pb2.CountRequest(store=name, partition=0, freshness=types_pb2.Freshness(moment=exactly(4)))
    assert node.call(node.query.Count, count).count == 1
    batch = query_service_pb2.BatchGetRequest(
        requests=[
            query_service_pb2.GetRequest(
                store=name,
                key=types_pb2.Key(text=key),
                freshness=freshness,
                forwarding=types_pb2.Forwarding(partition=partition),
            )
            for key, partition in (("a", 0), ("b", 1))
        ]
    )
    results = node.call(node.query.BatchGet, batch).results
    assert [each.response.value.text for each in results] == ["3", "2"], results


def test_what_nobody_wrote_in_batches_has_no_moments(
    node: tuple[Fleet, ServerProcess], unique_name: Callable[[str], str]
) -> None:
    fleet, process = node
    store = new_store(fleet, process, unique_name("static"))
    request = query_service_pb2.GetRequest(
        store=store.name, key=types_pb2.Key(text="a"), freshness=types_pb2.Freshness(moment=NEWEST)
    )
    with pytest.raises(LookupFailure, match="no processor of ours writes it") as failed:
        process.call(process.query.Get, request)
    assert failed.value.reason is Reason.MOMENTS_UNAVAILABLE


@pytest.mark.feature("values-too-old")
def test_values_that_are_too_old_are_refused(written: Written) -> None:
    written.batch(1)
    poll_until(lambda: why_refused(lambda: written.get("a", exactly(0), 0)) is None, 30, "the batch")
    old = types_pb2.Freshness(max_value_age_ms=0)
    request = query_service_pb2.ScanRequest(store=written.store.name, partition=0, freshness=old)
    with pytest.raises(LookupFailure) as failed:
        written.store.node.call(written.store.node.query.Scan, request)
    assert failed.value.reason is Reason.VALUE_TOO_OLD
    request.freshness.max_value_age_ms = 3_600_000
    assert written.store.node.call(written.store.node.query.Scan, request).entries


class Compared:
    """Reads of a store, each by the program and by Python: they are the same, and the program answers alone."""

    def __init__(self, store: ServedStore, metrics_port: int) -> None:
        self.store, self._port = store, metrics_port
        self._alone = 0.0  # calls that the program is to have answered alone
        self._marks = 0

    def _calls(self, way: str, code: str) -> float:
        return scrape(self._port).value("statehouse_node_proxy_calls_total", way=way, code=code)

    def begin(self, method: str, request: Any) -> None:
        """Ask until the program answers alone."""
        call = getattr(self.store.node.query, method)

        def is_alone() -> bool:
            is_answered = why_refused(lambda: self.store.node.call(call, request)) is None
            return is_answered and self._calls("stores", "OK") > 0

        poll_until(is_alone, 30, "the program to know the batch")
        self._alone = self._answered_alone()

    def end(self) -> None:
        """Check that the program has answered alone since."""
        assert self._answered_alone() == self._alone

    def _answered_alone(self) -> float:
        """Return how many calls the program has answered alone: they are counted with all others, as one that fails."""
        assert why_refused(lambda: self.store.node.get("a", store="unknown")) is Reason.UNKNOWN_STORE
        self._marks += 1
        poll_until(lambda: self._calls("link", "NOT_FOUND") == self._marks, 30, "all calls to be counted")
        return self._calls("stores", "OK")

    def lookup(self, key: bytes, moment: types_pb2.MomentBound | None) -> query_service_pb2.GetRequest:
        request = query_service_pb2.GetRequest(store=self.store.name, key=types_pb2.Key(raw=key))
        if moment is not None:
            request.freshness.moment.CopyFrom(moment)
        return request

    def get(self, key: bytes, moment: types_pb2.MomentBound) -> query_service_pb2.GetResponse:
        request = self.lookup(key, moment)
        answer: query_service_pb2.GetResponse = self._both(self.store.node.query.Get, request, [request])
        return answer

    def batch(self, *lookups: query_service_pb2.GetRequest) -> list[query_service_pb2.GetResponse]:
        request = query_service_pb2.BatchGetRequest(requests=lookups)
        results = self._both(self.store.node.query.BatchGet, request, request.requests).results
        return [each.response for each in results]

    def walk(self, moment: types_pb2.MomentBound) -> list[tuple[str, int]]:
        """Walk over all keys, one a page; only the first one names the moment. Return values and batches."""
        request = query_service_pb2.ScanRequest(store=self.store.name, partitions=[0, 1], page_size=1)
        request.freshness.moment.CopyFrom(moment)
        found: list[tuple[str, int]] = []
        while not found or request.page_token:
            page = self._both(self.store.node.query.Scan, request, [request])
            ((batch_id,),) = {tuple({stamp.moment.batch_id for stamp in page.replicas})}
            found += [(entry.value.text, batch_id) for entry in page.entries]
            request = query_service_pb2.ScanRequest(store=self.store.name, partitions=[0, 1], page_size=1)
            request.page_token = page.next_page_token
        return found

    def pages(self, method: str, request: Any, moment: types_pb2.MomentBound) -> list[Any]:
        """Ask for all pages of a read; only the first one names the moment. Return them."""
        pages: list[Any] = []
        request.freshness.moment.CopyFrom(moment)
        while not pages or request.page_token:
            following = type(request)()
            following.CopyFrom(request)
            following.ClearField("freshness")
            pages.append(self.ask(method, request))
            following.page_token = pages[-1].next_page_token
            request = following
        return pages

    def ask(self, method: str, request: Any) -> Any:
        return self._both(getattr(self.store.node.query, method), request, [request])

    def _both(self, call: Any, request: Any, reads: Any) -> Any:
        self._alone += 1
        answer = self.store.node.call(call, request)
        for each in reads:
            each.forwarding.traceparent = "00-1-1-00"  # Python's to answer
        assert timeless(answer) == timeless(poll_until(lambda: self._in_time(call, request), 30, "Python's answer"))
        return answer

    def _in_time(self, call: Any, request: Any) -> Any:
        """Return an answer; None if the node had no time for a lookup of a batch, as on a busy machine."""
        answer = self.store.node.call(call, request)
        late = (each.error.reason == Reason.WOULD_WAIT for each in getattr(answer, "results", ()))
        return None if any(late) else answer


def timeless(answer: Any) -> Any:
    """Return an answer without how old it is."""
    same = type(answer)()
    same.CopyFrom(answer)
    stamps = [each.response.replica for each in getattr(same, "results", ())]
    stamps += [same.replica] if "replica" in same.DESCRIPTOR.fields_by_name else getattr(same, "replicas", ())
    for stamp in stamps:
        stamp.ClearField("staleness_ms")
        stamp.ClearField("processor_age_ms")
    return same


@pytest.mark.parametrize("spec", [{}, {"in_memory": True}], ids=["disk", "memory"])
def test_the_program_answers_alone_what_python_would(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any]
) -> None:
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "moments-alone", partitions=2) as fleet:
        node = fleet.node("n1", engine="go", metrics_port=(port := free_port()))
        store = new_store(fleet, node, "s", committed=True, **spec)
        first, last = (next(key for key in (b"a", b"b", b"c", b"d") if partition_for(key, 2) == n) for n in range(2))
        writer = BatchWriter(
            store.bootstrap, fleet.application_id, [StoreChangelog("s", store.changelog, 2)], QUERY, query="s"
        )
        for batch_id in range(12):
            value = str(batch_id).encode()
            in_some = [Placed("s", 1, last, value)] if batch_id % 2 == 0 else []
            writer.write(batch_id, [Placed("s", 0, first, value), *in_some])
        writer.close()
        reads = Compared(store, port)
        newest = reads.lookup(last, exactly(11))
        reads.begin("Get", newest)
        for batch_id in range(12):
            assert reads.get(first, exactly(batch_id)).value.text == str(batch_id)
            assert reads.get(last, exactly(batch_id)).value.text == str(batch_id - batch_id % 2)
        assert reads.get(first, at_least(11)).replica.moment.batch_id == 11
        assert reads.get(b"none", NEWEST).found is False
        answers = reads.batch(
            *(reads.lookup(key, moment) for key in (first, last) for moment in (NEWEST, exactly(3), None))
        )
        assert [each.value.text for each in answers] == ["11", "3", "11", "10", "2", "10"]
        assert sorted(reads.walk(NEWEST)) == [("10", 11), ("11", 11)]
        assert sorted(reads.walk(exactly(5))) == [("4", 5), ("5", 5)]
        reads.end()


MINUTE_MS, BATCHES = 60_000, 12
BEGAN_MS = 1_000 * MINUTE_MS


def _written(kind: str, batch_id: int) -> list[Placed]:
    """Return what a batch writes of the keys `k` and `gone`. Each is a minute later than the one before."""
    at_ms = BEGAN_MS + batch_id * MINUTE_MS

    def of(key: bytes) -> bytes:
        match kind:
            case "window":
                return WindowKey(key, at_ms).to_bytes()
            case "session":
                return SessionKey(key, at_ms - MINUTE_MS, at_ms).to_bytes()
            case _:
                return key

    value = str(batch_id).encode()
    found = [Placed("s", 0, of(b"k"), value, at_ms), Placed("s", 0, of(b"gone"), value, at_ms)]
    return [*found, Placed("s", 0, found[1].key, None, at_ms + 1)] if batch_id % 2 else found


def _of_key(kind: str, batch_id: int) -> Iterator[tuple[str, Any]]:
    """Make reads of a key as of a batch, none of which is refused."""
    at_ms = BEGAN_MS + batch_id * MINUTE_MS
    for key in (b"k", b"gone", b"none"):
        of: dict[str, Any] = {"store": "s", "key": types_pb2.Key(raw=key)}
        times: dict[str, Any] = {"from_ms": at_ms - 2 * MINUTE_MS, "to_ms": at_ms + MINUTE_MS}
        for reverse in (False, True):
            page: dict[str, Any] = {**of, "page_size": 2, "reverse": reverse}
            match kind:
                case "window":
                    yield "FetchWindows", query_service_pb2.FetchWindowsRequest(**page)
                    yield "FetchWindows", query_service_pb2.FetchWindowsRequest(**page, **times)
                case "session":
                    yield "FetchSessions", query_service_pb2.FetchSessionsRequest(**page)
                    yield "FetchSessions", query_service_pb2.FetchSessionsRequest(**page, **times)
                case _:
                    yield "GetHistory", query_service_pb2.GetHistoryRequest(**page)
                    yield "GetHistory", query_service_pb2.GetHistoryRequest(**page, **times)
                    yield "Get", query_service_pb2.GetRequest(**of)
                    yield "GetAsOf", query_service_pb2.GetAsOfRequest(**of)
                    yield "GetAsOf", query_service_pb2.GetAsOfRequest(**of, as_of_ms=at_ms - MINUTE_MS)


@pytest.mark.parametrize(("kind", "in_memory"), [(WINDOW, False), (SESSION, True), (VERSIONED, False)])
def test_the_program_answers_alone_as_of_a_batch_what_has_times(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory, kind: str, in_memory: bool
) -> None:
    """A read as of a batch shows entries that had not expired at its end, also once later ones have let them expire."""
    size: dict[str, Any] = {"window_size_ms": MINUTE_MS} if kind == WINDOW else {}
    with shared_fleet(kafka.bootstrap, tmp_path_factory, "moments-timed", partitions=1) as fleet:
        node = fleet.node("n1", engine="go", metrics_port=(port := free_port()))
        forever = {"cleanup.policy": "delete", "retention.ms": "-1"}
        store = new_store(
            fleet,
            node,
            "s",
            forever,
            committed=True,
            kind=kind,
            retention_ms=3 * MINUTE_MS,
            in_memory=in_memory,
            **size,
        )
        writer = BatchWriter(
            store.bootstrap, fleet.application_id, [StoreChangelog("s", store.changelog, 1)], QUERY, query="s"
        )
        for batch_id in range(BATCHES):
            writer.write(batch_id, _written(kind, batch_id))
        writer.close()
        reads = Compared(store, port)
        begun = query_service_pb2.CountRequest(store="s", partition=0)
        begun.freshness.moment.CopyFrom(exactly(BATCHES - 1))
        reads.begin("Count", begun)
        counts, pages = [], 0
        for batch_id in range(BATCHES):
            for method, request in _of_key(kind, batch_id):
                if "page_size" in request.DESCRIPTOR.fields_by_name:
                    found = reads.pages(method, request, exactly(batch_id))
                    stamps = [each.replica for each in found]
                    pages += len(found) - 1
                else:
                    request.freshness.moment.CopyFrom(exactly(batch_id))
                    stamps = [reads.ask(method, request).replica]
                assert {each.moment.batch_id for each in stamps} == {batch_id}
            for is_exact in (False, True):
                count = query_service_pb2.CountRequest(store="s", partition=0, exact=is_exact)
                count.freshness.moment.CopyFrom(exactly(batch_id))
                counts.append(reads.ask("Count", count).count)
        assert pages > BATCHES
        assert len(set(counts)) > 1
        reads.end()
