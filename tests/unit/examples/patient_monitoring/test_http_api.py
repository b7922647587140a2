"""The heart rates' routes, answered by a client that reads a list."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from examples.patient_monitoring.http_api import READS, ROOT, STORE, answer
from statehouse.client import KeyedWindow, Window
from statehouse.errors import LookupFailure, Reason
from tests.support.http_api import Api, api_of

MINUTE = 60_000
NINE = 1_706_691_600_000  # 2024-01-31T09:00:00Z


class FakeStore:
    """What the API needs of a client; values are as JSON's numbers come."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], float] = {
            ("1", NINE): 120.0,
            ("1", NINE + MINUTE): 7.0,
            ("2", NINE): 61.0,
        }
        self.failure: LookupFailure | None = None

    async def scan_windows(
        self, store: str, *, from_ms: int | None = None, to_ms: int | None = None, page_size: int
    ) -> AsyncIterator[KeyedWindow]:
        self._check(store, page_size)
        for (key, start), count in self.counts.items():
            if (from_ms is None or start >= from_ms) and (to_ms is None or start <= to_ms):
                yield KeyedWindow(key, start, start + MINUTE, count, 0)

    async def fetch_windows(
        self, store: str, key: str, *, from_ms: int, to_ms: int, page_size: int
    ) -> AsyncIterator[Window]:
        async for each in self.scan_windows(store, from_ms=from_ms, to_ms=to_ms, page_size=page_size):
            if each.key == key:
                yield Window(each.start_ms, each.end_ms, each.value)

    def _check(self, store: str, page_size: int) -> None:
        assert store == STORE
        assert page_size > 0
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def api(store: FakeStore) -> Api:
    return api_of(store, ROOT, READS, answer)


def test_all_minutes_are_an_object_by_patient_and_bounds(api: Api):
    found = api("/bpm/all")

    assert found.status_code == 200
    assert found.json() == {
        f"[1@{NINE}/{NINE + MINUTE}]": 120,
        f"[1@{NINE + MINUTE}/{NINE + 2 * MINUTE}]": 7,
        f"[2@{NINE}/{NINE + MINUTE}]": 61,
    }
    assert b"120.0" not in found.content


def test_a_range_is_of_minutes_that_start_in_it(api: Api):
    first = {"start": "2024-01-31T09:00:00Z", "end": "2024-01-31T09:01:00Z"}

    assert api(f"/bpm/range/{NINE}/{NINE + MINUTE - 1}").json() == [
        {"key": "1", **first, "count": 120},
        {"key": "2", **first, "count": 61},
    ]


def test_a_patients_range(api: Api):
    assert api(f"/bpm/range/1/{NINE}/{NINE + MINUTE}").json() == [
        {"timestamp": "2024-01-31T09:00:00Z", "count": 120},
        {"timestamp": "2024-01-31T09:01:00Z", "count": 7},
    ]


def test_an_unknown_patient_and_an_empty_store_have_nothing(api: Api, store: FakeStore):
    assert api(f"/bpm/range/9/0/{NINE}").json() == []
    store.counts.clear()
    assert api("/bpm/all").json() == {}
    assert api(f"/bpm/range/0/{NINE}").json() == []


def test_a_fraction_of_a_second_is_shown(api: Api, store: FakeStore):
    store.counts = {("1", NINE + 5): 1.0}

    assert api(f"/bpm/range/1/0/{NINE + 5}").json()[0]["timestamp"] == "2024-01-31T09:00:00.005Z"


def test_a_patients_id_is_decoded_by_itself(api: Api, store: FakeStore):
    store.counts = {("ward/7 é", NINE): 1.0}

    assert len(api(f"/bpm/range/ward%2F7%20%C3%A9/0/{NINE}").json()) == 1


@pytest.mark.parametrize("time", ["x", "", "-1", "1.5", "1e3", "2024-01-31", "٣", "9" * 15, "9" * 5_000])
@pytest.mark.parametrize("path", ["/bpm/range/{}/1", "/bpm/range/1/{}", "/bpm/range/p/{}/1", "/bpm/range/p/1/{}"])
def test_what_is_no_time_is_400_with_a_reason(api: Api, path: str, time: str):
    found = api(path.format(time))

    assert found.status_code == 400
    assert found.json()["error"]["reason"] == "INVALID_TIME"
    assert "epoch milliseconds" in found.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/bpm", "/bpm/1", "/bpm/all/", "/bpm/range/1", "/bpm/range//1/2", "/other/all"])
def test_other_paths_are_404(api: Api, path: str):
    assert api(path).status_code == 404


@pytest.mark.parametrize("path", ["/bpm/all", "/bpm/range/0/1", "/bpm/range/1/0/1"])
@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.NO_REPLICA_AVAILABLE, 503), (Reason.INVALID_KEY, 400), (Reason.INTERNAL, 500)]
)
def test_a_failed_read_says_why(api: Api, store: FakeStore, path: str, reason: Reason, status: int):
    store.failure = LookupFailure(reason, "because")

    found = api(path)

    assert found.status_code == status
    assert found.json()["error"]["reason"] == reason.name
